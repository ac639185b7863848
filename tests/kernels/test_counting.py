"""How much each row counts, by masks; one that penalties have in common costs what one penalty's does."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import penalties as pn
from penalties.kernels.counting import Place, flags_of, shares_of, shown_by
from tests.libraries import DEVICE

from .cases import PAIR, drawn, pipeline

# The interpreter computes with NumPy, which warns where hardware does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def on_device(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, device=DEVICE)


def test_shares_of_a_mean_and_of_a_sum() -> None:
    mask = on_device(1.0, 0.0, 3.0)
    columns, places = shares_of([mask, None, mask, None], [True, True, False, False], 3)
    assert places == (Place(0), Place(None, 1 / 3), Place(1), Place(None, 1.0))
    torch.testing.assert_close(columns, [on_device(0.25, 0.0, 0.75), mask])


def test_a_mean_over_nothing_is_zero() -> None:
    (column,), _ = shares_of([on_device(0.0, 0.0)], [True], 2)
    torch.testing.assert_close(column, on_device(0.0, 0.0))


def test_masks_in_common_have_one_column() -> None:
    mask, other = on_device(1.0, 0.0), on_device(1.0, 0.0)
    columns, places = shares_of([mask, mask, other], [True] * 3, 2)
    assert len(columns) == 2
    assert [place.column for place in places] == [0, 0, 1]


def test_rows_that_count_for_any_penalty() -> None:
    one, other = on_device(1.0, 0.0, 0.0), on_device(0.0, 0.5, 0.0)
    assert shown_by([one, other, one]).tolist() == [True, True, False]
    assert shown_by([one, None]) is None
    assert shown_by([]) is None


def test_flags_say_whether_a_row_counts_and_whether_its_pair_does() -> None:
    shown, with_y = on_device(1, 1, 0) > 0, on_device(1, 0, 0) > 0
    assert flags_of(shown, with_y, pairs=True).tolist() == [2, 1, 0]
    assert flags_of(shown, shown, pairs=True).tolist() == [2, 2, 0]
    assert flags_of(shown, None, pairs=False).tolist() == [1, 1, 0]
    assert flags_of(None, with_y, pairs=True).tolist() == [2, 1, 1]
    assert flags_of(None, None, pairs=True) is None
    assert shown.tolist() == [True, True, False]


class Watch(TorchDispatchMode):
    """Counts operations: each takes the host as long as a kernel does for a small input."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", ["value_and_grad", "call", "call and backward"])
def test_further_penalties_with_the_same_mask_cost_an_operation_or_two(how: str) -> None:
    student, teacher = drawn(4, 20, seed=1).requires_grad_(), drawn(4, 20, seed=2)
    given = {"student": student, "teacher": teacher, "shown": on_device(1.0, 0.0, 0.5, 1.0)}
    (js,) = pipeline("js", mask="shown", logits=True)
    counts: list[int] = []
    for terms in (pn.Pipeline([js]), pn.Pipeline([js.replace(name=f"js {index}") for index in range(4)])):
        assert len(terms.plan(**given)) == 1
        for _ in range(2):
            with Watch() as watch:
                out = terms.value_and_grad(**given) if how == "value_and_grad" else terms(**given)
                if how == "call and backward":
                    out.total.backward()
        counts.append(watch.count)
    # The sum of the values, and its backward.
    assert counts[1] - counts[0] <= 3 * (2 if how == "call and backward" else 1)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_masks_of_several_kinds_in_a_backward(reduction: str) -> None:
    student, teacher = (drawn(5, 20, seed=seed) for seed in (1, 2))
    student[4] = teacher[4] = float("nan")
    given = {"shown": on_device(1.0, 0.0, 0.5, 1.0, 0.0), "other": on_device(0.0, 1.0, 2.0, 0.0, 0.0) > 0}
    terms = pn.Pipeline(
        [
            *pipeline("kl", "js", mask="shown", logits=True),
            *pipeline("reverse", "entropy", mask="other", logits=True, reduction=reduction),
        ]
    )
    leaves = {name: x.clone().requires_grad_() for name, x in zip(PAIR, (student, teacher), strict=True)}
    assert len(terms.plan(**leaves, **given)) == 1
    (3 * terms(**leaves, **given).total).backward()
    expected = terms.value_and_grad(student=student, teacher=teacher, **given, wrt=PAIR)
    for name, leaf in leaves.items():
        assert torch.isfinite(leaf.grad).all()
        torch.testing.assert_close(leaf.grad, 3 * expected.gradient[name], rtol=1e-5, atol=1e-7)


def test_a_mask_from_inference_mode() -> None:
    with torch.inference_mode():
        shown = on_device(1.0, 0.0, 0.5, 1.0)
    student, teacher = drawn(4, 20, seed=1).requires_grad_(), drawn(4, 20, seed=2)
    terms = pipeline("kl", "js", mask="shown", logits=True, reduction="sum")
    found = torch.autograd.grad(terms(student=student, teacher=teacher, shown=shown).total, student)
    right = torch.autograd.grad(terms(student=student, teacher=teacher, shown=shown.clone()).total, student)
    torch.testing.assert_close(found, right)
