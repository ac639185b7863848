"""Terms over rows, some rows at a time: equal to the whole in value and gradient, and lighter."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE, DIFFERENTIABLE, JAX, LIBRARIES, TORCH, close, value_and_gradients


def rows(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(count, 4))


TERMS = {
    "l1": pn.Term(pn.l1, inputs="p"),
    "l2 mean": pn.Term(pn.l2, inputs="p", options={"reduction": "mean", "clip": 1.0, "center": 0.5}),
    "kl": pn.Term(pn.kl_divergence, options={"logits": True}),
    "kl sum": pn.Term(pn.kl_divergence, options={"logits": True, "reduction": "sum"}),
    "masked": pn.Term(pn.js_divergence, inputs={"p": "p", "q": "q", "mask": "kept"}, options={"logits": True}),
    "masked sum": pn.Term(pn.entropy, inputs={"p": "p", "mask": "kept"}, options={"logits": True, "reduction": "sum"}),
    "consistency": pn.Term(pn.consistency, inputs=("p", "q"), options={"metric": "cosine"}),
}


# JAX compiles a loop for each size, so one that does not divide the rows has to do, and for each term.
SIZES = {"jax": [3]}
QUICK = ("l1", "masked sum")


@pytest.mark.parametrize(
    ("chosen", "name"),
    [
        pytest.param(library, name, marks=pytest.mark.slow if library is JAX and name not in QUICK else ())
        for library in LIBRARIES
        for name in TERMS
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_equals_the_whole(chosen: Any, name: str) -> None:
    for chunk in SIZES.get(chosen.name, [1, 3, 4, 7, 100]):
        check_equals_the_whole(chosen, TERMS[name], chunk)


def check_equals_the_whole(library: Any, term: pn.Term, chunk: int) -> None:
    p, q = library.array(rows(7)), library.array(rows(7, 1))
    mask = library.array([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 2.0])
    whole, pieces = pn.Pipeline([term]), pn.Pipeline([term.replace(chunk=chunk)])
    close(pieces(p=p, q=q, kept=mask).read().total, whole(p=p, q=q, kept=mask).read().total)
    if not library.differentiates:
        return
    (_, ours), (_, plain) = (
        value_and_gradients(library, lambda p, q, one=one: one.total(p=p, q=q, kept=mask))(p, q)
        for one in (pieces, whole)
    )
    for found, right in zip(ours, plain, strict=True):
        close(library.numpy(found), library.numpy(right))
    found = pieces.value_and_grad(p=p, q=q, kept=mask, wrt="p")
    close(
        library.numpy(found.gradient["p"]),
        library.numpy(whole.value_and_grad(p=p, q=q, kept=mask, wrt="p").gradient["p"]),
    )


@hypothesis.given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 100))
def test_any_size(chunk: int, count: int, seed: int) -> None:
    term = pn.Term(pn.kl_divergence, options={"logits": True})
    for library in DIFFERENTIABLE[:1]:
        p, q = library.array(rows(count, seed)), library.array(rows(count, seed + 1))
        close(
            pn.Pipeline([term.replace(chunk=chunk)])(p=p, q=q).read().total, pn.Pipeline([term])(p=p, q=q).read().total
        )


def test_no_rows_at_all(library: Any) -> None:
    empty = library.array(np.zeros((0, 4)))
    for term in (TERMS["l1"], TERMS["l2 mean"]):
        assert pn.Pipeline([term.replace(chunk=2)])(p=empty).metrics()["total"] == 0.0


def test_a_mask_that_hides_everything(library: Any) -> None:
    term = TERMS["masked"].replace(chunk=2)
    x = library.array(rows(3))
    assert pn.Pipeline([term])(p=x, q=-x, kept=library.array([0.0, 0.0, 0.0])).metrics()["total"] == 0.0


@pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
@pytest.mark.parametrize("fn", [pn.entropy, pn.cross_entropy])
def test_a_mask_in_lower_precision_keeps_the_digits_of_the_values(fn: Any) -> None:
    x = torch.tensor(rows(7), device=DEVICE)
    kept = torch.tensor([1, 1, 1, 0, 1, 1, 0.5], device=DEVICE) / 3
    labels = {"targets": "targets"} if fn is pn.cross_entropy else {}
    term = pn.Term(fn, inputs={"p": "x", "mask": "kept", **labels}, options={"logits": True})
    given = {"x": x, "kept": kept, "targets": torch.tensor([0, 1, -100, 3, 2, 1, 0], device=DEVICE)}
    pieces, whole = (pn.Pipeline([one])(**given).total for one in (term.replace(chunk=2), term))
    torch.testing.assert_close(pieces, whole, rtol=1e-14, atol=0.0)


def test_a_function_of_the_users(library: Any) -> None:
    def squares(x: Any, scale: float, reduction: str = "mean") -> Any:
        return scale * (x**2).mean()

    term = pn.Term(squares, options={"scale": 3.0}, chunk=2)
    x = library.array(rows(5))
    close(pn.Pipeline([term])(x).read().total, 3 * (rows(5) ** 2).mean())


@pytest.mark.parametrize(
    ("fn", "options", "message"),
    [
        (pn.orthogonality, {}, "None: this penalty is not a sum over rows"),
        (pn.l2, {"center": "mean"}, "None: with these options this penalty is not a sum over rows"),
        (pn.entropy, {"mask": np.ones(4)}, "None: with these options this penalty is not a sum over rows"),
        (pn.l1, {"reduction": "none"}, 'a function with reduction="sum" or "mean"'),
        (lambda x: x.sum(), {}, 'a function with reduction="sum" or "mean"'),
    ],
)
def test_what_is_no_sum_over_rows(fn: Any, options: Any, message: str) -> None:
    with pytest.raises(pn.OptionError, match=f"chunk=4; expected {message}"):
        pn.Term(fn, name="term", options=options, chunk=4)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"p": "text", "q": "text"}, "chunk= needs an array with rows among its inputs"),
        ({"p": rows(3), "q": rows(4)}, r"the same number of rows; got shapes \(3, 4\), \(4, 4\)"),
        ({"p": np.float64(1.0), "q": np.float64(1.0)}, "the same number of rows"),
    ],
)
def test_inputs_without_rows(inputs: Any, message: str) -> None:
    with pytest.raises(pn.TermError, match=message):
        pn.Pipeline([pn.Term(pn.kl_divergence, chunk=2)])(**inputs)


def test_pieces_combine_values_alone() -> None:
    def metered(x: Any, reduction: str = "sum") -> Any:
        return x.sum(), {"peak": x.max()}

    with pytest.raises(pn.TermError, match="chunk= combines .*0-d values"):
        pn.Pipeline([pn.Term(metered, chunk=2)])(rows(4))


@pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
class TestTorch:
    def test_a_piece_is_freed_before_the_next(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the graph keeps of each piece: its rows, which are views, and nothing computed."""
        monkeypatch.setenv("PENALTIES_KERNELS", "off")
        kept: list[int] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        x = torch.randn(64, 128, device=DEVICE, requires_grad=True)
        term = pn.Term(pn.entropy, options={"logits": True})
        amounts = []
        for candidate in (term, term.replace(chunk=8)):
            kept.clear()
            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                pn.Pipeline([candidate]).total(x)
            amounts.append(sum(kept))
        assert amounts[1] < amounts[0] / 4

    def test_a_parameter_in_a_closure_gets_its_gradient(self) -> None:
        scale = torch.tensor(2.0, device=DEVICE, requires_grad=True)

        def scaled(x: Any, reduction: str = "sum") -> Any:
            return (scale * x).sum()

        pn.Pipeline([pn.Term(scaled, chunk=2)]).total(torch.ones(5, device=DEVICE)).backward()
        assert scale.grad is not None
        assert scale.grad.item() == 5.0

    def test_compiled(self) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.entropy, options={"logits": True}, chunk=3)])
        x = TORCH.array(rows(7)).requires_grad_()
        compiled = torch.compile(pipeline.total, fullgraph=True, backend="aot_eager")
        (found,) = torch.autograd.grad(compiled(x), x)
        (plain,) = torch.autograd.grad(pipeline.total(x), x)
        torch.testing.assert_close(found, plain)

    def test_without_gradients(self) -> None:
        with torch.no_grad():
            out = pn.Pipeline([pn.Term(pn.l1, chunk=2)])(TORCH.array(rows(5)))
        close(out.read().total, np.abs(rows(5)).sum())


@pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")
def test_jax_compiles_one_piece() -> None:
    import jax

    pipeline = pn.Pipeline([pn.Term(pn.entropy, options={"logits": True}, chunk=2)])
    text = str(jax.make_jaxpr(pipeline.total)(JAX.array(rows(64))))
    assert text.count("exp") <= 8
    close(jax.jit(pipeline.total)(JAX.array(rows(7))), pipeline.total(JAX.array(rows(7))))


def test_a_piece_is_computed_once_more_for_its_gradient(autodiff: Any) -> None:
    """Once forward, once in the backward: however many pieces there are, no piece is computed a third time."""
    counted: list[int] = []

    def squares(x: Any, reduction: str = "sum") -> Any:
        if autodiff is JAX:
            jax.debug.callback(lambda: counted.append(1))
        else:
            counted.append(1)
        return (x**2).sum()

    x = autodiff.array(rows(8))
    out = pn.Pipeline([pn.Term(squares, chunk=2)]).value_and_grad(x, wrt="input")
    jax.effects_barrier()
    close(autodiff.numpy(out.gradient), 2 * rows(8))
    assert 4 < len(counted) <= 8
