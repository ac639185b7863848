"""`decay`: weights that shrink, coupled and decoupled."""

from typing import Any

import pytest
import torch

import penalties as pn
from penalties.integrations.torch import decay
from tests.integrations.optimizers.cases import flat, problem, sgd, weight
from tests.libraries import DEVICE


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"amsgrad": True}], ids=str)
def test_decoupled_l2_is_the_decay_of_adamw_to_the_bit(options: dict[str, Any]):
    ours, backward = problem()
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.01, **options)
    decay(optimizer, l2=0.1)
    theirs, other_backward = problem()
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1, **options)
    for _ in range(5):
        backward()
        optimizer.step()
        other_backward()
        reference.step()
    assert torch.equal(flat(ours), flat(theirs))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
@pytest.mark.parametrize("maximize", [False, True])
def test_coupled_l2_is_the_decay_of_the_optimizer_itself(kind: Any, maximize: bool):
    ours, backward = problem()
    optimizer = kind(ours.parameters(), lr=0.01, maximize=maximize)
    decay(optimizer, l2=0.1, decoupled=False)
    theirs, other_backward = problem()
    reference = kind(theirs.parameters(), lr=0.01, weight_decay=0.1, maximize=maximize)
    for _ in range(5):
        backward()
        optimizer.step()
        other_backward()
        reference.step()
    torch.testing.assert_close(flat(ours), flat(theirs), rtol=1e-12, atol=1e-12)


def test_coupled_decay_is_the_same_penalty_in_the_loss():
    ours, backward = problem()
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.01)
    decay(optimizer, l1=0.03, l2=0.02, decoupled=False)
    theirs, other_backward = problem()
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for _ in range(5):
        backward()
        optimizer.step()
        other_backward()
        # The slope of Σw² is 2w: half the strength.
        (0.03 * pn.l1(theirs.parameters()) + 0.01 * pn.l2(theirs.parameters())).backward()
        reference.step()
    torch.testing.assert_close(flat(ours), flat(theirs), rtol=1e-10, atol=1e-12)


def test_decoupled_l1_moves_all_weights_alike_whatever_their_gradients():
    parameter = weight([1.0, -1.0, 0.0], [100.0, 0.01, 0.0])
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    plain = weight([1.0, -1.0, 0.0], [100.0, 0.01, 0.0])
    torch.optim.Adam([plain], lr=0.1).step()
    decay(optimizer, l1=0.5)
    optimizer.step()
    expected = torch.tensor([-0.05, 0.05, 0.0], dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close((parameter - plain).detach(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("decoupled", [True, False])
def test_one_that_maximizes_shrinks_weights_too(decoupled: bool):
    parameter = weight([2.0, -2.0])
    optimizer = sgd(parameter, lr=0.5, maximize=True)
    decay(optimizer, l1=1.0, l2=0.5, decoupled=decoupled)
    optimizer.step()
    assert parameter.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("decoupled", [True, False])
def test_each_group_has_its_own_learning_rate(decoupled: bool):
    slow, fast = weight([1.0]), weight([1.0])
    optimizer = torch.optim.SGD([{"params": [slow], "lr": 0.1}, {"params": [fast], "lr": 0.5}])
    decay(optimizer, l2=1.0, decoupled=decoupled)
    optimizer.step()
    assert (slow.item(), fast.item()) == (0.9, 0.5)


@pytest.mark.parametrize("decoupled", [True, False])
def test_learning_rate_and_strength_may_be_tensors(decoupled: bool):
    parameter = weight([2.0, -1.0])
    optimizer = torch.optim.Adam([parameter], lr=torch.tensor(0.5, dtype=torch.float64))
    decay(optimizer, l1=lambda step: torch.tensor(0.5), l2=lambda step: torch.tensor(0.25), decoupled=decoupled)
    optimizer.step()
    # Adam's first step is lr·sign(gradient), and there is no gradient but that of the decay.
    expected = [1.5, -0.625] if decoupled else [1.5, -0.5]
    torch.testing.assert_close(parameter.detach().cpu(), torch.tensor(expected).double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("decoupled", [True, False])
def test_half_precision_stays_half_precision(dtype: torch.dtype, decoupled: bool):
    parameter = weight([2.0, -1.0], dtype=dtype)
    optimizer = sgd(parameter, lr=0.5)
    decay(optimizer, l1=0.5, l2=0.25, decoupled=decoupled)
    optimizer.step()
    assert parameter.dtype == dtype
    assert parameter.tolist() == [1.5, -0.625]


@pytest.mark.parametrize("decoupled", [True, False])
def test_complex_weights_shrink_towards_zero_on_a_line(decoupled: bool):
    parameter = weight([3 + 4j], dtype=torch.complex128)
    optimizer = sgd(parameter, lr=0.5)
    decay(optimizer, l1=5.0, decoupled=decoupled)
    optimizer.step()
    assert parameter.item() == pytest.approx(1.5 + 2j)


def test_decoupled_decay_takes_weights_with_sparse_gradients():
    table = torch.nn.Embedding(3, 2, sparse=True, device=DEVICE)
    before = table.weight.detach().clone()
    optimizer = sgd(table.weight, lr=0.5)
    decay(optimizer, l2=1.0)
    (0.0 * table(torch.tensor([1], device=DEVICE))).sum().backward()
    optimizer.step()
    torch.testing.assert_close(table.weight.detach(), 0.5 * before)


def test_strength_follows_a_schedule():
    parameter = weight([1.0])
    optimizer = sgd(parameter)
    decay(optimizer, l1=pn.schedules.piecewise({0: 0.0, 1: 0.25, 2: 0.125}))
    seen = []
    for _ in range(3):
        optimizer.step()
        seen.append(parameter.item())
    assert seen == [1.0, 0.75, 0.625]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "0.1", True])
@pytest.mark.parametrize("option", ["l1", "l2"])
def test_a_wrong_strength_is_an_error_at_once(option: str, value: Any):
    with pytest.raises(pn.OptionError, match=f"decay: {option}=.*; expected a finite number of at least 0"):
        decay(sgd(weight([1.0])), **{option: value})


def test_a_wrong_strength_of_a_schedule_is_an_error_in_its_step():
    parameter = weight([1.0])
    optimizer = sgd(parameter)
    decay(optimizer, l1=lambda step: 0.5 - step)
    optimizer.step()
    with pytest.raises(pn.OptionError, match=r"decay: l1=-0\.5; expected"):
        optimizer.step()
    assert parameter.item() == 0.5


def test_no_strength_and_a_wrong_flag_are_errors():
    with pytest.raises(pn.OptionError, match="decay: l1, l2=None; expected a strength for at least one"):
        decay(sgd(weight([1.0])))
    with pytest.raises(pn.OptionError, match='decay: decoupled="yes"; expected True or False'):
        decay(sgd(weight([1.0])), l1=1.0, decoupled="yes")


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_strengths_that_are_tensors_are_checked(value: float):
    with pytest.raises(pn.OptionError, match="decay: l1=.*expected a finite number of at least 0"):
        decay(sgd(weight([1.0])), l1=torch.tensor(value))
    optimizer = sgd(weight([1.0]))
    decay(optimizer, l1=lambda step: torch.tensor(value))
    with pytest.raises(pn.OptionError, match="decay: l1="):
        optimizer.step()
