"""`proximal`: exact zeros, of weights and of whole units."""

from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.integrations.torch import decay, proximal
from tests.integrations.optimizers.cases import sgd, weight
from tests.libraries import DEVICE


def stepped(values: Any, lr: float = 1.0, dtype: torch.dtype = torch.float64, **options: Any) -> torch.Tensor:
    """These weights after one step without a gradient."""
    parameter = weight(values, dtype=dtype)
    optimizer = sgd(parameter, lr=lr)
    proximal(optimizer, **options)
    optimizer.step()
    return parameter.detach()


def objective(x: torch.Tensor, start: torch.Tensor, l1: float, l2: float, group: float, axis: int) -> torch.Tensor:
    """What a proximal step with a learning rate of 1 minimizes."""
    penalty = l1 * x.abs().sum() + 0.5 * l2 * (x**2).sum() + group * x.norm(dim=1 - axis).sum()
    return penalty + 0.5 * ((x - start) ** 2).sum()


@pytest.mark.parametrize(
    "options",
    [
        {"l1": 0.3},
        {"l2": 0.7},
        {"group": 0.8},
        {"group": 0.8, "axis": 1},
        {"l1": 0.3, "l2": 0.7},
        {"l1": 0.3, "group": 0.4},
        {"l1": 0.3, "l2": 0.7, "group": 0.4},
    ],
    ids=str,
)
def test_step_is_the_minimum_of_the_penalty_and_the_distance(options: dict[str, Any]):
    rng = np.random.default_rng(0)
    start = torch.as_tensor(rng.normal(size=(6, 4)), device=DEVICE)
    found = stepped(start.tolist(), **options)
    full = {"l1": 0.0, "l2": 0.0, "group": 0.0, "axis": 0, **options}
    least = objective(found, start, **full)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(20):
            away = size * torch.as_tensor(rng.normal(size=(6, 4)), device=DEVICE)
            # In any direction, and in those where the penalty has no kinks, which hide a slope.
            assert objective(found + away, start, **full) > least
            assert objective(found + away * found, start, **full) > least
    # The minimum is strict: its distance bounds how much worse anything else is.
    assert objective(start, start, **full) - least >= 0.5 * ((start - found) ** 2).sum() - 1e-12


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_exactly_the_support_of_a_sparse_regression_is_found(momentum: float):
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(90, 100)), device=DEVICE)
    truth = torch.zeros(100, dtype=torch.float64, device=DEVICE)
    support = [3, 17, 42, 64, 91]
    truth[support] = torch.tensor([2.0, -1.5, 1.0, -1.0, 2.5], dtype=torch.float64, device=DEVICE)
    y = x @ truth + 0.1 * torch.as_tensor(rng.normal(size=90), device=DEVICE)
    parameter = torch.nn.Parameter(torch.zeros_like(truth))
    # With momentum a gradient counts 1 / (1 − momentum) times.
    optimizer = sgd(parameter, lr=0.2 * (1 - momentum), momentum=momentum)
    proximal(optimizer, l1=0.3 / (1 - momentum))
    for _ in range(300):
        optimizer.zero_grad()
        (((x @ parameter - y) ** 2).mean() / 2).backward()
        optimizer.step()
    assert parameter.detach().nonzero().flatten().tolist() == support
    assert torch.equal(parameter.detach().sign(), truth.sign())
    # At the minimum of the lasso the slope of the error balances the strength, and where a weight is 0 it is less.
    slope = x.T @ (x @ parameter.detach() - y) / 90
    assert slope.abs().max() <= 0.3 + 1e-6
    torch.testing.assert_close(slope[support], -0.3 * truth[support].sign(), rtol=1e-5, atol=1e-6)


def test_decay_alone_makes_no_zeros():
    parameter = weight([0.25, -1.0])
    optimizer = sgd(parameter, lr=0.1)
    decay(optimizer, l1=1.0)
    for _ in range(30):
        optimizer.step()
    assert parameter.count_nonzero() == 2
    assert parameter.abs().max() <= 0.1


def test_threshold_is_the_learning_rate_times_the_strength():
    assert stepped([1.0, 0.5, -0.25], lr=0.5, l1=1.0).tolist() == [0.5, 0.0, 0.0]


def test_threshold_follows_the_learning_rate_of_each_group_and_a_schedule():
    slow, fast = weight([1.0]), weight([1.0])
    optimizer = torch.optim.SGD([{"params": [slow], "lr": torch.tensor(0.125)}, {"params": [fast], "lr": 0.5}])
    proximal(optimizer, l1=pn.schedules.piecewise({0: 0.0, 1: 1.0}))
    optimizer.step()
    assert (slow.item(), fast.item()) == (1.0, 1.0)
    optimizer.step()
    assert (slow.item(), fast.item()) == (0.875, 0.5)
    optimizer.step()
    assert (slow.item(), fast.item()) == (0.75, 0.0)


@pytest.mark.parametrize(("axis", "expected"), [(0, [[0, 0], [1.5, 2]]), (1, [[0, 0.25], [0, 3.5]])])
def test_whole_units_become_zero(axis: int, expected: Any):
    values = [[0.0, 0.2], [3.0, 4.0]] if axis == 0 else [[0.0, 0.5], [2.0, 7.0]]
    strength = 2.5 if axis == 0 else 0.5 * (0.5**2 + 7.0**2) ** 0.5
    found = stepped(values, group=strength, axis=axis)
    torch.testing.assert_close(found, torch.tensor(expected).to(found))
    assert found.count_nonzero() == 2


def test_tensors_of_one_axis_have_no_units():
    assert stepped([1.0, 2.0], group=100.0).tolist() == [1.0, 2.0]
    assert stepped(2.0, group=100.0).item() == 2.0


def test_filters_of_a_convolution_are_units():
    found = stepped([[[[0.1]], [[0.1]]], [[[3.0]], [[4.0]]]], group=2.5)
    torch.testing.assert_close(found.flatten(), torch.tensor([0, 0, 1.5, 2.0]).to(found))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("option", ["l1", "group"])
def test_zeros_are_exact_in_every_precision(dtype: torch.dtype, option: str):
    found = stepped([[0.1, 0.2], [300.0, 400.0]], dtype=dtype, **{option: 0.5})
    assert found.dtype == dtype
    assert found.count_nonzero(dim=1).tolist() == [0, 2]
    assert found.isfinite().all()


def test_complex_weights_shrink_by_their_magnitude():
    found = stepped([3 + 4j, 0.3 + 0.4j, 0j], dtype=torch.complex128, l1=1.0)
    torch.testing.assert_close(found.cpu(), torch.tensor([2.4 + 3.2j, 0, 0], dtype=torch.complex128))


@pytest.mark.parametrize("options", [{"l1": 1.0}, {"group": 1.0}, {"group": 0.0}, {"l1": 0.0}], ids=str)
def test_nan_stays_nan_and_zero_stays_zero(options: dict[str, Any]):
    found = stepped([[float("nan"), 1.0], [0.0, 0.0]], **options)
    assert found[0, 0].isnan()
    assert found[1].tolist() == [0.0, 0.0]


def test_sparse_gradients_are_no_obstacle():
    table = torch.nn.Embedding(3, 2, sparse=True, device=DEVICE)
    with torch.no_grad():
        table.weight.copy_(torch.tensor([[0.1, 0.1], [1.0, 1.0], [0.1, 2.0]]))
    optimizer = torch.optim.SparseAdam([table.weight], lr=0.5)
    proximal(optimizer, l1=1.0)
    (0.0 * table(torch.tensor([1], device=DEVICE))).sum().backward()
    optimizer.step()
    assert table.weight.tolist() == [[0.0, 0.0], [0.5, 0.5], [0.0, 1.5]]


def test_wrong_options_are_errors():
    optimizer = sgd(weight([[1.0]]))
    with pytest.raises(pn.OptionError, match="proximal: l1, l2, group=None; expected a strength"):
        proximal(optimizer)
    with pytest.raises(pn.OptionError, match="proximal: group=-1; expected a finite number of at least 0"):
        proximal(optimizer, group=-1)
    with pytest.raises(pn.OptionError, match="proximal: axis=0.5; expected a whole number"):
        proximal(optimizer, l1=1.0, axis=0.5)
    proximal(optimizer, group=1.0, axis=2)
    with pytest.raises(pn.ShapeError, match=r"proximal: axis=2, but a parameter has shape \(1, 1\); choose"):
        optimizer.step()
