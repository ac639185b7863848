"""Which terms over distributions a kernel computes together."""

import itertools
from typing import Any

import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE

from .cases import drawn, pipeline

# The interpreter computes with NumPy, which warns where hardware does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class TestPlan:
    def test_what_is_together(self) -> None:
        student, teacher, other = (drawn(4, 20, seed=seed).requires_grad_(seed == 1) for seed in (1, 2, 3))
        terms = [*pipeline("kl", "entropy", logits=True), *pipeline("js", logits=True, temperature=2.0)]
        third = pn.Term(pn.kl_divergence, name="third", inputs=("other", "student"), options={"logits": True})
        plan = pn.Pipeline([*terms, third]).plan(student=student, teacher=teacher, other=other)
        assert [[job.term.name for job in group.jobs] for group in plan] == [["kl", "entropy"], ["js"], ["third"]]
        assert "student and teacher" in plan.groups[0].reason

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"options": {"floor": -20.0}}, "these options"),
            ({"on_error": "skip"}, "skipped"),
            ({"weight": torch.tensor(0.5)}, "array"),
            ({"runs": "thread"}, "thread"),
        ],
        ids=str,
    )
    def test_what_is_by_itself(self, change: Any, reason: str) -> None:
        (term,) = pipeline("kl")
        (group,) = pn.Pipeline([term.replace(**change)]).plan(student=drawn(4, 5), teacher=drawn(4, 5), wrt="student")
        assert reason in group.reason

    @pytest.mark.parametrize("wrap", [pn.EMA, pn.Normalized])
    def test_a_running_value_is_by_itself(self, wrap: Any) -> None:
        terms = pn.Pipeline([*pipeline("kl"), wrap(pipeline("js")["js"])])
        _, group = terms.plan(student=drawn(4, 5), teacher=drawn(4, 5), wrt="student")
        assert group.reason == "by itself: it has a running value"

    def test_chunks_are_not_needed(self) -> None:
        terms = pn.Pipeline([term.replace(chunk=2) for term in pipeline("kl", "entropy", logits=True)])
        (group,) = terms.plan(student=drawn(4, 5), teacher=drawn(4, 5), wrt="student")
        assert group.reason.endswith("by a kernel for distributions, in place of chunk=")

    def test_inputs_that_no_kernel_takes(self) -> None:
        terms = pipeline("kl", mask="shown", logits=True)
        x = drawn(4, 5)

        def reason(**inputs: Any) -> str:
            given = {"student": x, "teacher": x.clone(), "shown": torch.ones(4, device=DEVICE), **inputs}
            (group,) = terms.plan(wrt="student", **given)
            return group.reason

        assert "float64" in reason(student=x.double(), teacher=x.double())
        assert "differ" in reason(teacher=x.half())
        assert "mask" in reason(shown=torch.ones(4, 5, device=DEVICE))
        assert "requires a gradient" in reason(teacher=x.clone().requires_grad_())
        with pytest.raises(pn.TermError, match="mask has shape"):
            terms.value_and_grad(student=x, teacher=x.clone(), shown=torch.ones(4, 5, device=DEVICE), wrt="student")

    def test_turned_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PENALTIES_KERNELS", "off")
        (group,) = pipeline("entropy").plan(student=drawn(4, 5), wrt="student")
        assert "PENALTIES_KERNELS=off" in group.reason


def test_every_pair_of_terms_is_one_group() -> None:
    student, teacher = drawn(2, 8, seed=1), drawn(2, 8, seed=2)
    for one, other in itertools.combinations(pipeline(logits=True), 2):
        assert len(pn.Pipeline([one, other]).plan(student=student, teacher=teacher, wrt="student")) == 1


def test_blocks_of_lazy_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block goes through the kernel, with the shares of the whole batch."""
    monkeypatch.setattr("penalties.functional.blocks._FEWEST", 2)
    monkeypatch.setattr("penalties.backends.torch.block", lambda _: 1)
    hidden, weight, teacher = drawn(5, 4).requires_grad_(), drawn(20, 4, seed=1).requires_grad_(), drawn(5, 20, seed=2)
    given = {
        "student": pn.Logits(hidden, weight),
        "teacher": teacher,
        "shown": torch.tensor([1, 0, 1, 1, 1]).to(DEVICE),
    }
    terms = pn.Pipeline(
        [*pipeline("kl", "js", "entropy", logits=True), *pipeline("distill", mask="shown", logits=True)]
    )
    out = terms.value_and_grad(**given)
    right = terms(**{**given, "student": hidden @ weight.T})
    slopes = torch.autograd.grad(right.total, [hidden, weight])
    torch.testing.assert_close(out.total, right.total.detach())
    torch.testing.assert_close(out.gradient["student"].hidden, slopes[0])
    torch.testing.assert_close(out.gradient["student"].weight, slopes[1])


def test_an_infinite_row_of_float16_leaves_the_rest_of_its_block() -> None:
    """Gradients are scaled by their largest element before a product of half precision."""
    hidden, weight = drawn(3, 4, dtype=torch.float16).requires_grad_(), drawn(20, 4, dtype=torch.float16, seed=1)
    teacher = drawn(3, 20, dtype=torch.float16, seed=2)
    given = {"student": pn.Logits(hidden, weight), "teacher": teacher}
    right = pipeline("kl", logits=True).value_and_grad(**given).gradient["student"].hidden
    teacher[1, 3] = -float("inf")
    found = pipeline("kl", logits=True).value_and_grad(**given).gradient["student"].hidden
    assert not found[1].isfinite().all()
    torch.testing.assert_close(found[[0, 2]], right[[0, 2]], rtol=2e-3, atol=1e-4)
