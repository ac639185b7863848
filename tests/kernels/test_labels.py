"""Cross-entropy in the kernels for distributions, by itself and beside other terms over the same logits."""

from typing import Any

import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE

from .cases import INF, NAN, PAIR, assert_same, both, drawn, pipeline

# The interpreter computes with NumPy, which warns where hardware does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TERM = pn.Term(pn.cross_entropy, name="nll", weight=0.7, inputs=("student", "labels"))


USUAL = [(1, "mean"), (3, "mean"), (1000, "sum")]


def term(**changes: Any) -> pn.Term:
    inputs = changes.pop("inputs", {})
    return TERM.replace(inputs={**TERM.inputs, **inputs}, options=changes)


def labels(*values: int) -> torch.Tensor:
    return torch.tensor(values, device=DEVICE)


# The interpreter takes its time.
CASES = [
    pytest.param(classes, logits, reduction, marks=() if (classes, reduction) in USUAL else pytest.mark.slow)
    for classes in (1, 3, 1000, 2500)
    for logits in (True, False)
    for reduction in ("mean", "sum")
]


@pytest.mark.parametrize(("classes", "logits", "reduction"), CASES)
def test_beside_others(classes: int, logits: bool, reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are one group, and so one write of the gradient."""
    student, teacher = (drawn(3, classes, logits=logits, seed=seed) for seed in (1, 2))
    terms = pn.Pipeline(
        [*pipeline("kl", "symmetric", "js", "entropy", logits=logits), term(logits=logits, reduction=reduction)]
    )
    inputs = {"student": student, "teacher": teacher, "labels": labels(classes - 1, -100, classes // 2)}
    assert len(terms.plan(wrt="student", **inputs)) == 1
    assert_same(*both(terms, "student", monkeypatch, **inputs))
    assert_same(*both(terms, PAIR, monkeypatch, **inputs))


@pytest.mark.parametrize("options", [{"logits": True}, {"temperature": 2.0}, {"logits": False}, {"ignore_index": 4}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_by_itself(dtype: torch.dtype, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    student = drawn(4, 20, dtype=dtype, logits=options.get("logits", True), seed=3)
    given = labels(4, 0, 19, -100) if "ignore_index" not in options else labels(4, 0, 19, 7)
    assert_same(*both(pn.Pipeline([term(**options)]), "student", monkeypatch, student=student, labels=given), dtype)


def test_without_a_gradient_at_all() -> None:
    student = drawn(4, 20, seed=3)
    (group,) = pn.Pipeline([term(logits=True)]).plan(student=student, labels=labels(4, 0, 19, 3))
    assert "kernel" in group.reason


def test_masks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row may count for the labels alone, for others alone, or for none, whatever stands there."""
    student, teacher = drawn(4, 20, seed=5), drawn(4, 20, seed=6)
    student[3] = NAN
    teacher[[0, 3]] = INF
    entropy = pipeline("entropy", "kl", mask="shown", logits=True)
    terms = pn.Pipeline([*entropy, term(logits=True, inputs={"mask": "counted"})])
    inputs = {
        "student": student,
        "teacher": teacher,
        "labels": labels(3, -100, 77, 5),
        "shown": torch.tensor([False, True, True, False], device=DEVICE),
        "counted": torch.tensor([0.5, 1.0, 0.0, 0.0], device=DEVICE),
    }
    fused, plain = both(terms, PAIR, monkeypatch, **inputs)
    assert_same(fused, plain)
    assert torch.isfinite(fused.gradient["student"]).all()


def test_nothing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"student": torch.full((2, 20), NAN, device=DEVICE), "labels": labels(-100, -100)}
    fused, plain = both(pn.Pipeline([term(logits=True)]), "student", monkeypatch, **inputs)
    assert_same(fused, plain)
    assert float(fused.total) == 0.0


@pytest.mark.parametrize("outside", [20, -1, 2**32 + 3, -(2**40)])
@pytest.mark.parametrize("logits", [True, False])
def test_labels_outside_are_nan_and_nothing_is_read(outside: int, logits: bool) -> None:
    """The rows lie in longer ones, whose other numbers would show."""
    student = torch.full((2, 60), 1e4, device=DEVICE)[:, 20:40].copy_(drawn(2, 20, logits=logits, seed=7))
    terms = pn.Pipeline([term(logits=logits, ignore_index=None)])
    out = terms.value_and_grad(student=student, labels=labels(outside, 2), wrt="student")
    assert torch.isnan(out.total)
    assert torch.isnan(out["nll"].grad_norm)
    gradient = out.gradient["student"]
    assert torch.isnan(gradient[0]).any()
    assert torch.isfinite(gradient[1]).all()
    leaf = student.clone().requires_grad_()
    terms(student=leaf, labels=labels(outside, 2)).total.backward()
    assert torch.isnan(leaf.grad[0]).any()
    assert torch.isfinite(leaf.grad[1]).all()


def test_a_target_that_cannot_come(monkeypatch: pytest.MonkeyPatch) -> None:
    student = drawn(2, 20, seed=8)
    student[0, 3] = -INF
    for label, infinite in ((3, True), (4, False)):
        inputs = {"student": student, "labels": labels(label, 5)}
        fused, plain = both(pn.Pipeline([term(logits=True)]), "student", monkeypatch, **inputs)
        assert bool(torch.isinf(fused.total)) == infinite
        assert_same(fused, plain)


def test_two_sets_of_targets_are_two_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    other = TERM.replace(name="other", inputs=("student", "others"), options={"logits": True})
    terms = pn.Pipeline([*pipeline("kl", "entropy", logits=True), term(logits=True), other])
    inputs = {"student": drawn(3, 20, seed=1), "teacher": drawn(3, 20, seed=2)}
    inputs |= {"labels": labels(1, 2, 3), "others": labels(4, 5, -100)}
    plan = terms.plan(wrt="student", **inputs)
    assert [[job.term.name for job in group.jobs] for group in plan] == [["kl", "entropy", "nll"], ["other"]]
    assert_same(*both(terms, "student", monkeypatch, **inputs))


def test_targets_that_no_kernel_takes() -> None:
    terms = pn.Pipeline([term(logits=True)])

    def reason(**inputs: Any) -> str:
        (group,) = terms.plan(wrt="student", **{"student": drawn(2, 5), "labels": labels(1, 2), **inputs})
        return group.reason

    assert "whole numbers" in reason(labels=torch.ones(2, device=DEVICE))
    assert "shape without" in reason(labels=labels(1, 2, 3))
    fixed = TERM.replace(inputs={"p": "student"}, options={"targets": labels(1, 2)})
    (group,) = pn.Pipeline([fixed]).plan(student=drawn(2, 5), wrt="student")
    assert "is an option" in group.reason


class TestBackward:
    def terms(self) -> pn.Pipeline:
        return pn.Pipeline([*pipeline("kl", "js", "entropy", logits=True), term(logits=True)])

    def test_total(self) -> None:
        student, teacher = (drawn(3, 20, seed=seed).requires_grad_() for seed in (1, 2))
        given = labels(4, -100, 6)
        (3 * self.terms()(student=student, teacher=teacher, labels=given).total).backward()
        expected = self.terms().value_and_grad(student=student, teacher=teacher, labels=given)
        for name, x in (("student", student), ("teacher", teacher)):
            torch.testing.assert_close(x.grad, 3 * expected.gradient[name], rtol=1e-5, atol=1e-7)

    @pytest.mark.slow
    def test_compiled(self) -> None:
        student, teacher, given = drawn(3, 20, seed=1).requires_grad_(), drawn(3, 20, seed=2), labels(4, -100, 6)
        terms = self.terms()

        def total(student: Any, teacher: Any, given: Any) -> Any:
            return terms(student=student, teacher=teacher, labels=given).total

        compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
        (found,) = torch.autograd.grad(compiled(student, teacher, given), student)
        (expected,) = torch.autograd.grad(total(student, teacher, given), student)
        torch.testing.assert_close(found, expected)
