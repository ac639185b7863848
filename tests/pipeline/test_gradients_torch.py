"""Gradients of terms on PyTorch: its graphs, modes and transforms."""

import math
from typing import Any

import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE, LIBRARIES, TORCH

needs_torch = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")


@needs_torch
class TestTorch:
    def test_total_stays_on_the_callers_graph(self) -> None:
        layer = torch.nn.Linear(3, 2).to(DEVICE)
        hidden = layer(torch.ones(4, 3, device=DEVICE))
        out = pn.Pipeline(["l1", "l2"]).value_and_grad(hidden)
        out.total.backward()
        (expected,) = torch.autograd.grad(
            pn.Pipeline(["l1", "l2"]).total(layer(torch.ones(4, 3, device=DEVICE))), layer.weight
        )
        torch.testing.assert_close(layer.weight.grad, expected)

    def test_a_parameter_in_a_closure_gets_its_gradient(self) -> None:
        scale = torch.tensor(2.0, device=DEVICE, requires_grad=True)
        x = torch.ones(3, device=DEVICE)
        out = pn.Pipeline([pn.Term(lambda x: (scale * x).sum(), name="scaled")]).value_and_grad(x, wrt="input")
        out.total.backward()
        assert scale.grad is not None
        assert scale.grad.item() == 3.0
        assert out.gradient.tolist() == [2.0, 2.0, 2.0]

    def test_captured_and_other_terms_together(self) -> None:
        """One term keeps its graph for a parameter in its closure, the other's is freed: the total has both."""
        scale = torch.tensor(2.0, device=DEVICE, requires_grad=True)
        x = torch.tensor([1.0, -3.0], device=DEVICE, requires_grad=True)
        terms = [pn.Term(lambda x: (scale * x**2).sum(), 0.5, "scaled"), pn.Term(pn.l1, 3.0), pn.Term(pn.l2, 0.25)]
        out = pn.Pipeline(terms).value_and_grad(x)
        expected = scale.detach() * x.detach() + 3.0 * x.detach().sign() + 0.5 * x.detach()
        torch.testing.assert_close(out.gradient, expected)
        (2 * out.total).backward()
        torch.testing.assert_close(x.grad, 2 * expected)
        torch.testing.assert_close(scale.grad, torch.tensor(10.0, device=DEVICE))

    def test_graphs_are_freed_term_by_term(self) -> None:
        """A term that needs no graph any more leaves a value without one, and the total hangs on its inputs."""
        x = torch.tensor([1.0, -3.0], device=DEVICE, requires_grad=True)
        out = pn.Pipeline(["l1", "l2"]).value_and_grad(x)
        assert not out["l1"].value.requires_grad
        assert out.total.requires_grad
        with torch.no_grad():
            assert not pn.Pipeline(["l1"]).value_and_grad(x).total.requires_grad
        assert not pn.Pipeline(["l1"]).value_and_grad(x.detach(), wrt="input").total.requires_grad

    def test_learned_weights(self) -> None:
        weight = torch.tensor(0.5, device=DEVICE, requires_grad=True)
        x = torch.tensor([1.0, 2.0], device=DEVICE, requires_grad=True)
        out = pn.Pipeline(["l1", "l2"]).value_and_grad(x, weights={"l2": weight})
        torch.testing.assert_close(out.gradient, torch.tensor([2.0, 3.0], device=DEVICE))
        out.total.backward()
        assert weight.grad is not None
        assert weight.grad.item() == 5.0

    def test_a_weight_that_depends_on_the_input_is_taken_exactly(self) -> None:
        x = torch.tensor([1.0, 2.0], device=DEVICE, requires_grad=True)
        weight = (x**2).mean()
        out = pn.Pipeline(["l1", "l2"]).value_and_grad(x, weights={"l1": weight})
        (expected,) = torch.autograd.grad((x**2).mean() * x.abs().sum() + (x**2).sum(), x)
        torch.testing.assert_close(out.gradient, expected)

    def test_gradients_that_are_views_are_not_written_to(self) -> None:
        """The gradient of a sum is one number expanded, and two inputs of a sum share theirs."""
        a = torch.ones(3, device=DEVICE, requires_grad=True)
        b = torch.ones(3, device=DEVICE, requires_grad=True)
        terms = [pn.Term(lambda a, b: (a + b).sum(), name=f"s{i}", weight=2.0) for i in range(3)]
        out = pn.Pipeline(terms).value_and_grad(a=a, b=b)
        assert out.gradient["a"].tolist() == out.gradient["b"].tolist() == [6.0, 6.0, 6.0]

    def test_inside_no_grad_and_inference_mode(self) -> None:
        x = torch.tensor([1.0, 2.0], device=DEVICE)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert pn.Pipeline(["l1", "l2"])(x).metrics()["total"] == 8.0
                assert pn.Pipeline(["l1"]).value_and_grad(x, wrt="input").gradient.tolist() == [1.0, 1.0]
        with torch.inference_mode():
            inference = torch.tensor([1.0, -2.0], device=DEVICE)
            assert pn.Pipeline(["l1"]).value_and_grad(inference, wrt="input").gradient.tolist() == [1.0, -1.0]
        x.requires_grad_()
        assert pn.Pipeline(["l1", "l2"]).value_and_grad(x).gradient.tolist() == [3.0, 5.0]

    def test_a_gradient_that_fails_names_the_term(self) -> None:
        class Broken(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x.sum()

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                raise ArithmeticError("no way back")

        with pytest.raises(pn.TermError, match="broken: its gradient raised ArithmeticError: no way back") as caught:
            pn.Pipeline([pn.Term(lambda x: Broken.apply(x), name="broken")]).value_and_grad(
                torch.ones(2, device=DEVICE), wrt="input"
            )
        assert caught.value.phase == "gradient"

    def test_transforms_of_torch_func(self) -> None:
        x = torch.tensor([[1.0, -2.0], [3.0, 4.0]], device=DEVICE)
        pipeline = pn.Pipeline([pn.Term(pn.l1, 0.5), pn.Term(pn.l2, 0.25)])
        torch.testing.assert_close(torch.func.grad(pipeline.total)(x[0]), torch.tensor([1.0, -1.5], device=DEVICE))
        each = torch.func.vmap(pipeline.total)(x)
        torch.testing.assert_close(each, torch.stack([pipeline.total(row) for row in x]))
        inner = torch.func.vmap(lambda row: pipeline.value_and_grad(row, wrt="input").gradient)(x)
        torch.testing.assert_close(inner, torch.stack([torch.func.grad(pipeline.total)(row) for row in x]))

    def test_tensors_of_other_kinds_add_up(self) -> None:
        """Subclasses, several dtypes and many different weights: each takes another way to the same sum."""

        class Marked(torch.Tensor):
            pass

        x = torch.tensor([1.0, -2.0], device=DEVICE)
        pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="a"), pn.Term(pn.l2, 2, inputs="b")])
        assert pipeline(a=x.as_subclass(Marked), b=x.as_subclass(Marked)).metrics()["total"] == 13.0
        assert pipeline(a=x, b=x.double()).metrics()["total"] == 13.0
        for step in range(300):
            assert pipeline(a=x, b=x, weights={"l1": step / 4}).metrics()["total"] == 10.0 + 3 * step / 4

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_sparse_gradients_add_up(self, dtype: Any) -> None:
        rows = torch.tensor([0, 1, 1], device=DEVICE)

        def looked_up(table: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.embedding(rows, table, sparse=True).float().sum()

        table = torch.ones(3, 2, device=DEVICE, dtype=dtype, requires_grad=True)
        out = pn.Pipeline([pn.Term(looked_up, 0.5), "l1"]).value_and_grad(table=table, x=table, wrt="table", keep=True)
        assert out.gradient["table"].tolist() == [[0.5, 0.5], [1.0, 1.0], [0.0, 0.0]]
        assert float(out["looked_up"].grad_norm) == pytest.approx(10**0.5)

    @pytest.mark.parametrize("size", [2**14, 2**14 + 1, 10**6 + 3])
    def test_norms_of_many_elements_keep_their_digits(self, size: int) -> None:
        x = torch.randn(size, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))
        out = pn.Pipeline([pn.Term(pn.l1, 1e-3), pn.Term(pn.l2, 0.5)]).value_and_grad(x, wrt="input").read()
        assert out["l1"].grad_norm == pytest.approx(math.sqrt(size), rel=1e-5)
        assert out["l2"].grad_norm == pytest.approx(2 * float(x.double().norm()), rel=1e-5)

    @pytest.mark.parametrize("weight", [0.0, 1e-30, 1e30, 3, 1e-6])
    def test_norms_do_not_depend_on_the_weight(self, weight: float) -> None:
        x = torch.tensor([3.0, 4.0], device=DEVICE)
        out = pn.Pipeline([pn.Term(pn.l2, weight), pn.Term(pn.l1, 0.5)]).value_and_grad(x, wrt="input").read()
        assert out["l2"].grad_norm == pytest.approx(10.0)
        assert out["l1"].grad_norm == pytest.approx(math.sqrt(2))

    def test_large_gradients_are_compared_pair_by_pair(self) -> None:
        x = torch.randn(2**17, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))
        out = pn.Pipeline(["l1", "l2"]).value_and_grad(x, wrt="input", cosines=True)
        expected = torch.nn.functional.cosine_similarity(x.sign(), 2 * x, dim=0)
        assert out.cosines[0, 1].item() == pytest.approx(expected.item(), rel=1e-4)
        idle = pn.Pipeline(["l1", pn.Term(lambda y: y.sum(), name="other")])
        matrix = idle.value_and_grad(x=x, y=x, wrt=("x", "y"), cosines=True).cosines
        assert matrix[0, 1].item() == 0.0
