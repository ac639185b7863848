"""`centralize`, `clip_norm`, `clip_units` and `gradient_noise`: what becomes of gradients before a step."""

from typing import Any

import pytest
import torch

import penalties as pn
from penalties.integrations.torch import centralize, clip_norm, clip_units, decay, gradient_noise
from tests.integrations.optimizers.cases import flat, problem, sgd, weight
from tests.libraries import DEVICE


def test_clipping_is_that_of_torch_to_the_bit():
    ours, backward = problem()
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.01)
    clip_norm(optimizer, max_norm=0.1)
    theirs, other_backward = problem()
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for _ in range(3):
        backward()
        optimizer.step()
        other_backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        reference.step()
    assert torch.equal(flat(ours), flat(theirs))


def test_each_unit_is_clipped_by_its_own_weights():
    values = [[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]
    for axis, transposed in ((0, False), (1, True)):
        given = torch.tensor(values).T if transposed else torch.tensor(values)
        parameter = weight(given.tolist(), torch.ones_like(given))
        optimizer = sgd(parameter)
        clip_units(optimizer, ratio=0.1, eps=0.1, axis=axis)
        optimizer.step()
        norms = parameter.grad.norm(dim=1 - axis)
        torch.testing.assert_close(norms, torch.tensor([0.5, 0.05, 0.01]).to(norms))


def test_a_gradient_of_zero_is_not_clipped_and_one_of_nan_stays():
    parameter = weight([[1.0], [1.0]], [[0.0], [float("nan")]])
    optimizer = sgd(parameter)
    clip_units(optimizer)
    optimizer.step()
    assert parameter[0].item() == 1.0
    assert parameter[1].isnan()


def test_the_units_to_centralize_lie_along_an_axis():
    parameter = weight([[0.0, 0.0], [0.0, 0.0]], [[1.0, 4.0], [3.0, 0.0]])
    optimizer = sgd(parameter)
    centralize(optimizer, axis=1)
    optimizer.step()
    assert parameter.grad.tolist() == [[-1.0, 2.0], [1.0, -2.0]]


def test_transforms_run_in_the_order_in_which_they_were_attached():
    results = []
    for order in ((0, 1), (1, 0)):
        parameter = weight([[1.0, 1.0]], [[3.0, 5.0]])
        optimizer = sgd(parameter)
        transforms = (lambda given: centralize(given), lambda given: clip_norm(given, max_norm=1.0))
        for index in order:
            transforms[index](optimizer)
        optimizer.step()
        results.append(parameter.grad.norm().item())
    centralized_first, clipped_first = results
    assert centralized_first == pytest.approx(1.0)
    assert clipped_first == pytest.approx(2**0.5 / 34**0.5)


def test_noise_depends_on_seed_and_step_alone():
    def drawn(seed: int, skipped: int = 0) -> list[float]:
        parameter = weight([0.0, 0.0, 0.0])
        optimizer = sgd(parameter)
        gradient_noise(optimizer, variance=1.0, decay=0.0, seed=seed)
        torch.manual_seed(skipped)  # nor on what else is drawn
        gradients = []
        for _ in range(2):
            parameter.grad.zero_()
            optimizer.step()
            gradients += parameter.grad.tolist()
        return gradients

    assert drawn(1) == drawn(1, skipped=5)
    assert drawn(1) != drawn(2)


def test_tensors_of_one_shape_get_different_noise():
    first, second = weight([0.0] * 3), weight([0.0] * 3)
    optimizer = sgd(first, second)
    gradient_noise(optimizer)
    optimizer.step()
    assert first.grad.tolist() != second.grad.tolist()


def test_noise_differs_between_names_and_is_the_same_beside_a_parameter_without_a_gradient():
    def drawn(name: str, frozen: bool) -> list[float]:
        first, second = weight([0.0] * 3), weight([0.0] * 3)
        if frozen:
            first.grad = None
        optimizer = sgd(first, second)
        gradient_noise(optimizer, name=name)
        optimizer.step()
        return second.grad.tolist()

    assert drawn("a", frozen=False) == drawn("a", frozen=True)
    assert drawn("a", frozen=False) != drawn("b", frozen=False)


def test_the_variance_of_noise_may_be_a_schedule():
    parameter = weight([0.0] * 2000)
    optimizer = sgd(parameter)
    gradient_noise(optimizer, variance=pn.schedules.piecewise({0: 4.0, 1: 0.0}), decay=0.0)
    optimizer.step()
    assert parameter.grad.std().item() == pytest.approx(2.0, rel=0.1)
    parameter.grad.zero_()
    optimizer.step()
    assert parameter.grad.count_nonzero() == 0


@pytest.mark.parametrize(
    "transform",
    [centralize, clip_norm, clip_units, gradient_noise, lambda given: decay(given, l1=0.1, decoupled=False)],
)
def test_a_sparse_gradient_is_an_error_that_says_what_to_do(transform: Any):
    table = torch.nn.Embedding(3, 2, sparse=True, device=DEVICE)
    optimizer = sgd(table.weight)
    transform(optimizer)
    table(torch.tensor([1], device=DEVICE)).sum().backward()
    with pytest.raises(
        pn.GradientError, match=r"a parameter of shape \(3, 2\) has a sparse gradient; expected a dense"
    ):
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_stay_half_precision(dtype: torch.dtype):
    parameter = weight([[300.0, 400.0]], [[300.0, 400.0]], dtype=dtype)
    optimizer = sgd(parameter)
    clip_units(optimizer, ratio=0.5)
    centralize(optimizer)
    gradient_noise(optimizer, variance=0.0)
    clip_norm(optimizer, max_norm=1.0)
    optimizer.step()
    assert parameter.grad.dtype == dtype
    torch.testing.assert_close(parameter.grad.float().cpu(), torch.tensor([[-0.7071, 0.7071]]), rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("transform", "options", "message"),
    [
        (clip_norm, {"max_norm": 0.0}, "clip_norm: max_norm=0.0; expected a finite number above 0"),
        (clip_norm, {"max_norm": float("nan")}, "clip_norm: max_norm=nan; expected a finite number above 0"),
        (clip_units, {"ratio": -1.0}, "clip_units: ratio=-1.0; expected a finite number above 0"),
        (clip_units, {"eps": 0}, "clip_units: eps=0; expected a finite number above 0"),
        (clip_units, {"axis": None}, "clip_units: axis=None; expected a whole number"),
        (centralize, {"axis": "rows"}, 'centralize: axis="rows"; expected a whole number'),
        (gradient_noise, {"variance": -0.1}, "gradient_noise: variance=-0.1; expected a finite number of at least 0"),
        (gradient_noise, {"decay": float("inf")}, "gradient_noise: decay=inf; expected a finite number of at least 0"),
        (gradient_noise, {"seed": -1}, "gradient_noise: seed=-1; expected a whole number of at least 0"),
    ],
)
def test_a_wrong_number_is_an_error_at_once(transform: Any, options: dict[str, Any], message: str):
    with pytest.raises(pn.OptionError, match=message):
        transform(sgd(weight([1.0])), **options)
