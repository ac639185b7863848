"""The length of a gradient that a group has formed."""

import pytest
import torch

from penalties.kernels.lengths import length
from tests.libraries import DEVICE

# The interpreter computes with NumPy, which warns where hardware does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def drawn(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size)).to(DEVICE, dtype)


@pytest.mark.parametrize("size", [1, 7, 4096, 10_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_is_that_in_float64(size: int, dtype: torch.dtype) -> None:
    x, y = drawn(size, dtype), drawn(size + 1, dtype)
    torch.testing.assert_close(length([x, y]).double(), torch.cat([x, y]).double().norm(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e18, 1e30])
def test_squares_may_be_out_of_range(scale: float) -> None:
    x = drawn(5000) * scale
    torch.testing.assert_close(length([x]).double(), x.double().norm(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_shows(value: float) -> None:
    x = drawn(100)
    x[3] = value
    torch.testing.assert_close(length([x]).item(), value, equal_nan=True)


def test_nothing_and_zeros() -> None:
    assert length([]) is None
    assert length([torch.zeros(10, device=DEVICE), torch.zeros(0, device=DEVICE)]).item() == 0.0


def test_no_kernel() -> None:
    assert length([drawn(4).double()]) is None
    assert length([drawn(6).reshape(2, 3).T]) is None
