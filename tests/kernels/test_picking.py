"""Log-probabilities of targets and their gradient by kernels, against float64."""

import pytest
import torch

from penalties.kernels.picking import picked
from tests.libraries import DEVICE

# The interpreter computes with NumPy, which warns where hardware does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (3, 7), (2, 5000)])
@pytest.mark.parametrize(("dtype", "tight"), [(torch.float32, 1e-5), (torch.bfloat16, 8e-3), (torch.float16, 1e-3)])
def test_agrees_with_float64(rows: int, classes: int, dtype: torch.dtype, tight: float) -> None:
    source = torch.Generator().manual_seed(classes)
    logits = torch.randn(rows, classes, generator=source).to(DEVICE, dtype)
    targets = torch.randint(classes, (rows,), generator=source).to(DEVICE)
    slopes = torch.randn(rows, generator=source).to(DEVICE)
    found = picked(logits, targets)
    assert found is not None
    exact = logits.double().requires_grad_()
    expected = exact.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(found.logprobs.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(expected, exact, slopes.double())
    torch.testing.assert_close(found.gradient(slopes).double(), gradient, rtol=tight, atol=tight * 1e-1)


def test_a_target_that_is_not_a_class_shows() -> None:
    found = picked(torch.zeros(2, 3, device=DEVICE), torch.tensor([1, 3], device=DEVICE))
    assert found is not None
    assert found.logprobs.isnan().tolist() == [False, True]


def test_no_kernel() -> None:
    targets = torch.zeros(2, dtype=torch.long, device=DEVICE)
    assert picked(torch.zeros(2, 3, dtype=torch.float64, device=DEVICE), targets) is None
