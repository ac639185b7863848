"""A call of a pipeline whose terms a kernel computes, and then a backward."""

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import penalties as pn
from penalties.errors import GradientError
from penalties.kernels.triton import operators
from tests.libraries import DEVICE

from .cases import drawn, pipeline

# The interpreter computes with NumPy, which warns where hardware does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class TestBackward:
    """`pipeline(...)`, and then a backward."""

    @pytest.mark.parametrize("logits", [True, False])
    def test_total(self, logits: bool) -> None:
        student, teacher = (drawn(1, 2, 20, logits=logits, seed=seed).requires_grad_() for seed in (1, 2))
        terms = pipeline(logits=logits)
        out = terms(student=student, teacher=teacher)
        (3 * out.total).backward()
        expected = terms.value_and_grad(student=student, teacher=teacher)
        for name, x in (("student", student), ("teacher", teacher)):
            torch.testing.assert_close(x.grad, 3 * expected.gradient[name], rtol=1e-5, atol=1e-7)

    def test_each_value_stays_differentiable(self) -> None:
        student, teacher = drawn(4, 20, seed=1).requires_grad_(), drawn(4, 20, seed=2)
        terms = pipeline("reverse", "symmetric", "js", logits=True)
        out = terms(student=student, teacher=teacher)
        for term in terms:
            (gradient,) = torch.autograd.grad(out[term.name].value, student, retain_graph=True)
            alone = pn.Pipeline([term]).value_and_grad(student=student, teacher=teacher)
            torch.testing.assert_close(gradient * term.weight, alone.gradient["student"], rtol=1e-5, atol=1e-7)

    def test_a_teacher_from_inference_mode(self) -> None:
        with torch.inference_mode():
            teacher, given = drawn(4, 20, seed=2), torch.tensor([1, 19, 0, 4], device=DEVICE)
        student = drawn(4, 20, seed=1).requires_grad_()
        labels = pn.Term(pn.cross_entropy, inputs=("student", "given"), options={"logits": True})
        terms = pn.Pipeline([*pipeline("kl", "js", logits=True), labels])
        found = torch.autograd.grad(terms(student=student, teacher=teacher, given=given).total, student)
        inputs = {"student": student, "teacher": teacher.clone(), "given": given.clone()}
        torch.testing.assert_close(found, torch.autograd.grad(terms(**inputs).total, student))

    def test_learned_weights(self) -> None:
        student, teacher = drawn(4, 20, seed=1), drawn(4, 20, seed=2)
        weight = torch.tensor(0.5, device=DEVICE, requires_grad=True)
        out = pipeline("kl", logits=True)(student=student, teacher=teacher, weights={"kl": weight})
        out.total.backward()
        torch.testing.assert_close(weight.grad, out["kl"].value.detach())

    def test_second_derivatives_are_refused(self) -> None:
        student = drawn(4, 20).requires_grad_()
        out = pipeline("entropy", logits=True)(student=student)
        (gradient,) = torch.autograd.grad(out.total, student, create_graph=True)
        with pytest.raises(GradientError, match="PENALTIES_KERNELS=off"):
            gradient.sum().backward()

    @pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own, at the first dual number
    def test_forward_mode_is_refused(self) -> None:
        student = drawn(4, 20)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(student, torch.ones_like(student))
            with pytest.raises(GradientError, match=r"forward-mode .* PENALTIES_KERNELS=off"):
                pipeline("entropy", logits=True)(student=dual)

    @pytest.mark.slow
    @pytest.mark.parametrize("whole", [True, False])
    def test_operation(self, whole: bool) -> None:
        """Schema, fake tensors, autograd and tracing of the operation inside a graph, as PyTorch checks them."""
        x, y = (drawn(4, 20, seed=seed).requires_grad_() for seed in (1, 2))
        labels = torch.tensor([1, 19, 0, 4], device=DEVICE)
        shown = torch.tensor([True, False, True, True], device=DEVICE)
        given = (x, y, labels, shown, [True] * 5) if whole else (x, None, None, None, [True, *[False] * 4])
        torch.library.opcheck(operators._forward, (*given, 2.0, whole))

    def test_compiled(self) -> None:
        student, teacher = drawn(4, 20, seed=1).requires_grad_(), drawn(4, 20, seed=2).requires_grad_()
        shown = torch.tensor([True, False, True, True], device=DEVICE)
        terms = pipeline(mask="shown", logits=True)

        def total(student: Any, teacher: Any, shown: Any) -> Any:
            return terms(student=student, teacher=teacher, shown=shown).total

        compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
        found = torch.autograd.grad(compiled(student, teacher, shown), (student, teacher))
        expected = torch.autograd.grad(total(student, teacher, shown), (student, teacher))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)

    def test_without_a_graph(self) -> None:
        student, teacher = drawn(4, 20, seed=1).requires_grad_(), drawn(4, 20, seed=2)
        with torch.no_grad():
            out = pipeline(logits=True)(student=student, teacher=teacher)
        assert not out.total.requires_grad
        assert_close = torch.testing.assert_close
        assert_close(out.total, pipeline(logits=True)(student=student, teacher=teacher).total.detach())
