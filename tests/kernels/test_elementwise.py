"""Kernels for element-wise penalties: one launch over many tensors, with the numbers of the penalties."""

from typing import Any

import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE

# The interpreter computes with NumPy, which warns where hardware does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TERMS = pn.Pipeline(
    [
        pn.Term(pn.l1, weight=0.1),
        pn.Term(pn.l2, weight=0.01),
        pn.Term(pn.elastic_net, weight=0.3, options={"l1_ratio": 0.3, "reduction": "mean"}),
        pn.Term(pn.smooth_l1, weight=2.0, options={"delta": 0.5}),
        pn.Term(pn.smooth_l1, name="wide", weight=0.5, options={"delta": 2.0, "reduction": "mean"}),
    ]
)
SHAPES = [(1,), (7, 5), (), (300, 100), (16384,)]
TIGHT = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def tensors(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in SHAPES]
    drawn[1][2] = 0.0
    return [x.to(DEVICE, dtype).requires_grad_() for x in drawn]


def both(monkeypatch: pytest.MonkeyPatch, xs: Any, terms: pn.Pipeline = TERMS) -> tuple[Any, Any]:
    """The outputs of the kernel, and of the penalties themselves in float64."""
    (group,) = terms.plan(xs)
    assert "kernel for element-wise penalties" in group.reason
    fused = terms.value_and_grad(xs)
    with monkeypatch.context() as patch:
        patch.setenv("PENALTIES_KERNELS", "off")
        return fused, terms.value_and_grad([x.detach().double().requires_grad_() for x in xs])


def assert_same(fused: Any, plain: Any, tolerance: float) -> None:
    for one, other in zip(fused, plain, strict=True):
        assert one.value.dtype == one.grad_norm.dtype == torch.float32
        torch.testing.assert_close(one.value.double(), other.value, rtol=1e-5, atol=0.0, equal_nan=True)
        torch.testing.assert_close(one.grad_norm.double(), other.grad_norm, rtol=1e-5, atol=0.0, equal_nan=True)
    for one, other in zip(fused.gradient, plain.gradient, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(
        fused.total_grad_norm.double(), plain.total_grad_norm, rtol=1e-5, atol=0.0, equal_nan=True
    )


@pytest.mark.parametrize("dtype", list(TIGHT))
def test_values_gradients_and_norms(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(*both(monkeypatch, tensors(dtype)), TIGHT[dtype])


def test_the_order_of_terms_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(*both(monkeypatch, tensors(), pn.Pipeline(TERMS.terms[::-1])), TIGHT[torch.float32])


@pytest.mark.parametrize("size", [1e-25, 1e19])
def test_squares_out_of_range(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    bent = [pn.Term(pn.smooth_l1, name=f"delta {delta}", options={"delta": delta}) for delta in (1.0, 2.0)]
    terms = pn.Pipeline([pn.Term(pn.l2), *bent])
    fused, plain = both(monkeypatch, [torch.full((1000,), size, device=DEVICE, requires_grad=True)], terms)
    for one, other in zip(fused, plain, strict=True):
        torch.testing.assert_close(one.grad_norm.double(), other.grad_norm, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(fused.total_grad_norm.double(), plain.total_grad_norm, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("element", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_is_where_autograd_has_it(element: float, monkeypatch: pytest.MonkeyPatch) -> None:
    xs = tensors()
    with torch.no_grad():
        xs[1][3, 3] = element
    fused, plain = both(monkeypatch, xs)
    for one, other in zip(fused, plain, strict=True):
        torch.testing.assert_close(one.value.double(), other.value, equal_nan=True)
    torch.testing.assert_close(fused.gradient[1].double(), plain.gradient[1], equal_nan=True)


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_the_gradient_of_one_term_at_nan_is_that_of_autograd(term: pn.Term, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 where it is a sign, as in PyTorch: the others must not hide it."""
    xs = tensors()
    with torch.no_grad():
        xs[1][3, 3] = float("nan")
    fused, plain = both(monkeypatch, xs, pn.Pipeline([term]))
    torch.testing.assert_close(fused.gradient[1].double(), plain.gradient[1], rtol=1e-5, atol=1e-8, equal_nan=True)
    torch.testing.assert_close(
        fused.total_grad_norm.double(), plain.total_grad_norm, rtol=1e-4, atol=0.0, equal_nan=True
    )


@pytest.mark.parametrize("layout", ["turned", "strided", "expanded"])
def test_tensors_that_are_not_contiguous(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensors()[3].detach()
    x = {"turned": x.T, "strided": x[::3, 1::2], "expanded": x[:1].expand(5, -1)}[layout].requires_grad_()
    assert not x.is_contiguous()
    assert_same(*both(monkeypatch, [tensors()[1], x]), TIGHT[torch.float32])


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
def test_a_plan_from_before_a_graph_is_captured_is_not_used_in_it() -> None:
    """Wherever the first input is: a table of addresses would be read when it is gone."""
    x, beside = tensors()[3], torch.zeros(2)
    terms = pn.Pipeline([pn.Term(pn.l1, inputs="x"), pn.Term(pn.l2, inputs="x")])
    for _ in range(2):
        terms.value_and_grad(beside=beside, x=x, wrt="x")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = terms.value_and_grad(beside=beside, x=x, wrt="x")
    with torch.no_grad():
        x.mul_(2.0)
    graph.replay()
    expected = terms.value_and_grad(beside=beside, x=x, wrt="x")
    torch.testing.assert_close(out.gradient["x"], expected.gradient["x"])


class TestAccumulating:
    def test_new_gradients(self) -> None:
        xs = tensors()
        expected = TERMS.value_and_grad(tensors())
        out = TERMS.value_and_grad(xs, accumulate=True)
        assert out.gradient is None
        assert not out.total.requires_grad
        torch.testing.assert_close(out.total, expected.total.detach())
        torch.testing.assert_close(out.total_grad_norm, expected.total_grad_norm)
        torch.testing.assert_close([x.grad for x in xs], list(expected.gradient))

    def test_added_in_place(self) -> None:
        xs = tensors()
        for x in xs[1:]:
            x.grad = torch.ones_like(x)
        before = [x.grad for x in xs]
        expected = TERMS.value_and_grad(tensors())
        out = TERMS.value_and_grad(xs, accumulate=True)
        for x, grad, gradient in zip(xs, before, expected.gradient, strict=True):
            assert x.grad is grad or grad is None
            torch.testing.assert_close(x.grad, gradient + (0.0 if grad is None else 1.0))
        # That of this call alone, without what was there.
        torch.testing.assert_close(out.total_grad_norm, expected.total_grad_norm)

    def test_a_parameter_that_is_there_twice(self) -> None:
        x = tensors()[3]
        (gradient, _) = TERMS.value_and_grad([x, x]).gradient
        x.grad = torch.ones_like(x)
        TERMS.value_and_grad([x, x], accumulate=True)
        torch.testing.assert_close(x.grad, 1 + 2 * gradient)


class TestPlan:
    def test_frozen_parameters_count_and_have_no_gradient(self) -> None:
        xs = tensors()
        xs[0].requires_grad_(False)
        (*_, group) = TERMS.plan(xs)
        assert "not taken at all" in group.reason

    def test_a_tensor_of_another_class_among_plain_ones(self) -> None:
        class Wrapped(torch.Tensor):
            pass

        x, y = (x.detach() for x in tensors()[:2])
        (*_, group) = TERMS.plan([x.requires_grad_(), y.as_subclass(Wrapped).requires_grad_()])
        assert "no kernel for a Wrapped" in group.reason

    def test_mixed_dtypes(self) -> None:
        (*_, group) = TERMS.plan([tensors()[0], tensors(torch.bfloat16)[1]])
        assert "differ" in group.reason

    def test_an_empty_tensor(self) -> None:
        xs = [*tensors(), torch.zeros(0, 3, device=DEVICE, requires_grad=True)]
        (*_, group) = TERMS.plan(xs)
        assert "empty" in group.reason
        out, without = TERMS.value_and_grad(xs), TERMS.value_and_grad(tensors())
        torch.testing.assert_close(out.total, without.total)
        assert out.gradient[-1].shape == (0, 3)

    def test_many_deltas(self) -> None:
        terms = pn.Pipeline(
            [pn.Term(pn.smooth_l1, name=f"term{i}", options={"delta": 1.0 + i}) for i in range(5)],
        )
        assert [len(group.jobs) for group in terms.plan(tensors())] == [3, 1, 1]
