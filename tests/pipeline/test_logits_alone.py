"""Penalties over `Logits` that are computed by themselves, and still a block of rows at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import penalties as pn
from penalties.arrays import Logits
from tests.heads import head, learned, mask_of, use_small_blocks
from tests.libraries import LIBRARIES, TORCH

pytestmark = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")

TERM = pn.Term(pn.entropy, weight=2.0, inputs={"p": "student", "mask": "kept"}, options={"logits": True})
WRAPPERS = {
    "ema": pn.EMA,
    "normalized": pn.Normalized,
    "both": lambda term: pn.EMA(pn.Normalized(term)),
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
class TestARunningValue:
    def test_has_the_numbers_of_the_array(self, wrap: Callable[[pn.Term], pn.Term]) -> None:
        student, kept = head((6,)), mask_of((6,))
        leaves, pipeline = learned(student), pn.Pipeline([wrap(TERM)])
        state: Any = None
        for _ in range(2):
            out, right = (pipeline(student=x, kept=kept, state=state) for x in (student, student.materialize()))
            found = torch.autograd.grad(out.total, leaves)
            torch.testing.assert_close(found, torch.autograd.grad(right.total, leaves))
            taken = pipeline.value_and_grad(student=student, kept=kept, state=state).gradient["student"]
            torch.testing.assert_close([taken.hidden, taken.weight, taken.bias], list(found))
            state = out.state

    def test_is_of_blocks(self, wrap: Callable[[pn.Term], pn.Term], monkeypatch: pytest.MonkeyPatch) -> None:
        rows: list[int] = []
        plain = Logits.materialize
        monkeypatch.setattr(Logits, "materialize", lambda self: rows.append(self.shape[0]) or plain(self))
        student = head((6,))
        learned(student)
        pipeline = pn.Pipeline([wrap(TERM)])
        (group,) = pipeline.plan(student=student, kept=mask_of((6,)))
        assert group.reason == "by itself: it has a running value; computed in blocks of rows"
        pipeline.value_and_grad(student=student, kept=mask_of((6,)))
        assert set(rows) == {2}

    def test_padding_reaches_nothing(self, wrap: Callable[[pn.Term], pn.Term]) -> None:
        student = head((6,))
        student.hidden[0] = float("nan")
        learned(student)
        out = pn.Pipeline([wrap(TERM)]).value_and_grad(student=student, kept=mask_of((6,)))
        assert out.gradient["student"].weight.isfinite().all()


def test_a_running_value_of_your_own_function_gets_the_array() -> None:
    student = head((6,))
    learned(student)
    pipeline = pn.Pipeline([pn.EMA(pn.Term(lambda student: student.square().mean(), name="size"))])
    (group,) = pipeline.plan(student=student)
    assert group.reason == "by itself: it has a running value; computed with the array of student"
    torch.testing.assert_close(pipeline(student=student).total, student.materialize().square().mean())


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own, at the first dual number
@pytest.mark.parametrize("part", ["hidden", "weight", "bias"])
def test_a_forward_mode_derivative_is_that_of_the_array(part: str) -> None:
    student, kept = head((6,)), mask_of((6,))
    with forward_ad.dual_level():
        array = getattr(student, part)
        parts = {"hidden": student.hidden, "weight": student.weight, "bias": student.bias}
        dual = Logits(**{**parts, part: forward_ad.make_dual(array, torch.ones_like(array))}, softcap=student.softcap)
        pipeline = pn.Pipeline([TERM])
        (group,) = pipeline.plan(student=dual, kept=kept)
        assert "a forward-mode derivative is taken; computed in blocks of rows" in group.reason
        found, right = (
            forward_ad.unpack_dual(pipeline(student=x, kept=kept).total) for x in (dual, dual.materialize())
        )
        torch.testing.assert_close(found.primal, right.primal)
        torch.testing.assert_close(found.tangent, right.tangent)


def test_a_wrapper_that_changes_inputs_gets_the_array() -> None:
    student, kept = head((6,)), mask_of((6,))
    leaves, pipeline = learned(student), pn.Pipeline([pn.StraightThrough(TERM, wrt="p")])
    (group,) = pipeline.plan(student=student, kept=kept)
    reason = "by itself: a wrapper changes its evaluation; computed with the array of student"
    assert group.reason == reason
    out, right = (pipeline(student=x, kept=kept).total for x in (student, student.materialize()))
    torch.testing.assert_close(torch.autograd.grad(out, leaves), torch.autograd.grad(right, leaves))
