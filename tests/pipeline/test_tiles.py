"""Gradients of large terms, a few rows at a time, are those of the whole."""

from typing import Any

import pytest
import torch
from torch import Tensor

import penalties as pn
from penalties.backends import torch as backend
from penalties.backends.torch import composition
from penalties.pipeline import call
from penalties.pipeline.catalogue import SEPARABLE

PAIRED = ("kl_divergence", "js_divergence", "consistency", "kl_estimate")
CASES = [
    *((function.__name__, {"reduction": reduction}) for function in SEPARABLE for reduction in ("sum", "mean")),
    ("l2", {"center": 0.5, "clip": 1.0}),
    ("elastic_net", {"l1_ratio": 0.0}),
    ("elastic_net", {"l1_ratio": 1.0}),
    ("elastic_net", {"l1_ratio": 0.3, "reduction": "mean"}),
    ("smooth_l1", {"delta": 2.5}),
    ("smooth_l1", {"delta": 0.1, "reduction": "mean"}),
    ("smooth_l1", {"delta": 1e-40}),
    ("kl_divergence", {"direction": "reverse", "floor": -3.0}),
    ("entropy", {"mode": "bonus", "normalize": True, "temperature": 2.0}),
    ("consistency", {"metric": "cosine"}),
    ("js_divergence", {"logits": True}),
]


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Tiles of about twenty elements, and whether each term was taken in tiles."""
    monkeypatch.setattr(composition, "_TILE", 20)
    seen: list[bool] = []

    def spy(*args: Any) -> Any:
        found = in_tiles(*args)
        seen.append(found is not None)
        return found

    in_tiles = call.in_tiles
    monkeypatch.setattr(call, "in_tiles", spy)
    return seen


def logprobs(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).log_softmax(-1)


def given(*shape: int) -> dict[str, Tensor]:
    return {"x": logprobs(0, *shape).requires_grad_(), "y": logprobs(1, *shape)}


def term(name: str, options: dict[str, Any], weight: Any = 0.3, **arguments: Any) -> pn.Term:
    return pn.Term(name, weight, inputs=("x", "y") if name in PAIRED else "x", options=options, **arguments)


def assert_as_autograd(pipeline: pn.Pipeline, inputs: dict[str, Tensor], wrt: list[str]) -> pn.LossOutput:
    out = pipeline.value_and_grad(**inputs, wrt=wrt)
    leaves = {name: inputs[name].detach().requires_grad_() for name in wrt}
    for one in pipeline:
        value = pn.Pipeline([one.with_weight(1.0)]).total(**{**inputs, **leaves})
        torch.testing.assert_close(out[one.name].value, value.detach())
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        length = torch.cat([g.reshape(-1) for g in gradients if g is not None]).norm()
        torch.testing.assert_close(out[one.name].grad_norm, length)
    total = pipeline.total(**{**inputs, **leaves})
    gradients = torch.autograd.grad(total, list(leaves.values()))
    torch.testing.assert_close(out.total.detach(), total.detach())
    for name, gradient in zip(leaves, gradients, strict=True):
        torch.testing.assert_close(out.gradient[name], gradient)
        assert out.gradient[name].dtype == inputs[name].dtype
    return out


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("shape", [(7, 9), (5, 3, 4)])
def test_tiles_give_what_the_whole_gives(
    tiles: list[bool], name: str, options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    assert_as_autograd(pn.Pipeline([term(name, options)]), given(*shape), ["x"])
    assert tiles == [True]


def test_several_terms_share_one_sum(tiles: list[bool]) -> None:
    def half(x: Tensor) -> Tensor:
        return 0.5 * x.sum()

    pipeline = pn.Pipeline(
        [half, term("l1", {}), pn.Term(half, 2.0, name="other"), term("kl_divergence", {}, weight=0.0)]
    )
    assert_as_autograd(pipeline, given(7, 9), ["x"])
    assert tiles == [False, True, False, True]


def test_both_inputs_of_a_pair(tiles: list[bool]) -> None:
    out = assert_as_autograd(pn.Pipeline([term("kl_divergence", {}), term("l1", {})]), given(7, 9), ["x", "y"])
    assert tiles == [True, True]
    assert set(out["kl_divergence"].grad_norms) == {"x", "y"}
    assert set(out["l1"].grad_norms) == {"x"}


def test_the_total_trains_what_is_behind_the_input(tiles: list[bool]) -> None:
    source = torch.randn(7, 9, dtype=torch.float64, requires_grad=True)
    pipeline = pn.Pipeline([term("entropy", {}), term("l2", {})])
    pipeline.value_and_grad(x=source.log_softmax(-1), wrt="x").total.backward()
    ours, source.grad = source.grad, None
    pipeline.total(x=source.log_softmax(-1)).backward()
    torch.testing.assert_close(ours, source.grad)
    assert tiles == [True, True]


def test_an_array_of_other_strides(tiles: list[bool]) -> None:
    inputs = given(9, 7)
    assert_as_autograd(pn.Pipeline([term("l1", {}), term("l2", {})]), {"x": inputs["x"].detach().T}, ["x"])
    assert tiles == [True, True]


def test_a_weight_too_small_to_scale_by(tiles: list[bool]) -> None:
    assert_as_autograd(pn.Pipeline([term("l2", {}, weight=1e-9)]), given(7, 9), ["x"])
    assert tiles == [True]


@pytest.mark.parametrize(
    "one",
    [
        term("l2", {"center": "mean"}),
        term("l1", {}, weight=torch.tensor(0.3, dtype=torch.float64)),
        term("entropy", {}, differentiable=True, chunk=2),
        pn.Term("entropy", inputs={"p": "x", "mask": "counts"}),
        pn.Term("orthogonality", inputs="x"),
    ],
    ids=["centred", "array weight", "chunks", "masked", "not separable"],
)
def test_what_is_no_sum_over_rows_is_taken_whole(tiles: list[bool], one: pn.Term) -> None:
    inputs = given(7, 9) | {"counts": torch.arange(7.0, dtype=torch.float64)}
    assert_as_autograd(pn.Pipeline([one]), inputs, ["x"])
    assert tiles == [False]


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": logprobs(0, 63)},
        {"x": logprobs(0, 1, 63)},
        {"x": logprobs(0, 2, 5)},
    ],
    ids=["one axis", "one row", "small"],
)
def test_what_has_no_rows_to_cut_is_taken_whole(tiles: list[bool], inputs: dict[str, Any]) -> None:
    assert_as_autograd(pn.Pipeline([term("entropy", {})]), inputs, ["x"])
    assert tiles == [False]


def test_a_list_is_taken_whole(tiles: list[bool]) -> None:
    x = logprobs(0, 7, 9)
    out = pn.Pipeline([term("l1", {})]).value_and_grad(x=[x, x], wrt="x")
    torch.testing.assert_close(out.gradient["x"][1], 0.3 * x.sign())
    assert tiles == [False]


def test_half_precision_is_taken_whole(tiles: list[bool]) -> None:
    x = logprobs(0, 7, 9).to(torch.bfloat16)
    assert pn.Pipeline([term("l1", {})]).value_and_grad(x=x, wrt="x").gradient["x"].dtype == torch.bfloat16
    assert tiles == [False]


def test_an_input_beside_that_requires_a_gradient_keeps_its_path(tiles: list[bool]) -> None:
    inputs = given(7, 9)
    inputs["y"].requires_grad_()
    pipeline = pn.Pipeline([term("kl_divergence", {})])
    pipeline.value_and_grad(**inputs, wrt="x").total.backward()
    assert inputs["y"].grad is not None
    assert tiles == [False]


def test_cosines_need_whole_gradients(tiles: list[bool]) -> None:
    out = pn.Pipeline([term("l1", {}), term("l2", {})]).value_and_grad(**given(7, 9), wrt="x", cosines=True)
    assert out.cosines.shape == (2, 2)
    assert tiles == [False, False]


def test_shapes_that_differ_are_the_error_of_the_penalty(tiles: list[bool]) -> None:
    with pytest.raises(pn.TermError, match="expected equal shapes"):
        pn.Pipeline([term("consistency", {})]).value_and_grad(x=logprobs(0, 7, 9), y=logprobs(1, 7, 8), wrt="x")
    assert tiles == [False]


def test_a_vector_is_refused_as_ever(tiles: list[bool]) -> None:
    with pytest.raises(pn.TermError, match="returned an array of shape"):
        pn.Pipeline([term("l1", {"reduction": "none"})]).value_and_grad(**given(7, 9), wrt="x")
    assert tiles == [False]


def test_a_failure_names_the_term(tiles: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(x: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(backend, "clip", lambda x, low, high: full(x))
    with pytest.raises(pn.TermError, match="l2: raised RuntimeError: out of memory"):
        pn.Pipeline([term("l2", {"clip": 1.0})]).value_and_grad(**given(7, 9), wrt="x")


def test_zeros_for_an_input_that_no_term_reads_whatever_it_holds() -> None:
    inputs = {"x": torch.ones(2), "y": torch.tensor([torch.inf, torch.nan])}
    out = pn.Pipeline([pn.Term("l1", inputs="x")]).value_and_grad(**inputs, wrt=["x", "y"])
    assert out.gradient["y"].tolist() == [0.0, 0.0]
