"""How a term adds up over micro-batches and ranks, from its facts and from what its author said."""

import functools
from typing import Any

import pytest

import penalties as pn
from penalties.pipeline.catalogue import BUILT_IN
from penalties.pipeline.scope import scope_of


def own(x: Any) -> Any:
    return x.sum()


def reducing(x: Any, reduction: str = "mean") -> Any:
    return x.mean()


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_has_a_scope(name: str) -> None:
    reduction = pn.Term(name).reduction
    assert scope_of(pn.Term(name)) == (reduction or "mean")


@pytest.mark.parametrize(
    ("term", "scope"),
    [
        (pn.Term(pn.l2), "sum"),
        (pn.Term(pn.l2, options={"reduction": "mean"}), "mean"),
        (pn.Term(pn.l2, inputs="params"), "step"),
        (pn.Term(pn.l2, inputs="params.head.weight"), "step"),
        (pn.Term(pn.consistency, inputs=("params.a", "params.b")), "step"),
        (pn.Term(pn.consistency, inputs=("params.a", "b")), "mean"),
        (pn.Term(pn.consistency, inputs=("params.a", "b"), options={"reduction": "sum"}), None),
        (pn.Term(pn.consistency, inputs=("a", "params"), options={"reduction": "sum"}, scope="step"), "step"),
        (pn.Term(pn.l2, inputs="params", scope="mean"), "mean"),
        (pn.Term(functools.partial(pn.l2, reduction="mean")), "mean"),
        (pn.Term(pn.gradient_penalty), "mean"),
        (pn.EMA(pn.Term(pn.l2)), "sum"),
        (pn.EMA(pn.Normalized(pn.Term(pn.gradient_penalty))), "mean"),
        (pn.ScoreFunction(pn.Term(lambda samples: samples, name="judge"), "logprobs"), "mean"),
        (pn.EMA(pn.Term(own, scope="sum")), "sum"),
        (pn.Term(reducing), "mean"),
        (pn.Term(reducing, options={"reduction": "sum"}), "sum"),
        (pn.Term(own), None),
        (pn.Term(own, inputs="params"), "step"),
        (pn.Term(lambda: 0.0, name="nothing", differentiable=False), None),
    ],
    ids=str,
)
def test_scope_follows_the_term_then_its_inputs_then_its_reduction(term: pn.Term, scope: Any) -> None:
    assert scope_of(term) == scope


@pytest.mark.parametrize("scope", ["batch", "", True, 1])
def test_other_scopes_raise(scope: Any) -> None:
    with pytest.raises(pn.OptionError, match='scope=.*; expected "mean", "sum" or "step"'):
        pn.Term(pn.l1, scope=scope)


def test_scope_is_shown_and_survives_a_round_trip() -> None:
    pipeline = pn.Pipeline([pn.Term(pn.l1, scope="step"), pn.Normalized(pn.Term(pn.l2, scope="mean"))])
    config = pipeline.to_config()
    assert [entry["scope"] for entry in config] == ["step", "mean"]
    assert pn.Pipeline.from_config(config) == pipeline
    assert repr(pipeline["l1"]) == "Term(l1, weight=1.0, scope='step')"
    assert "scope step" in repr(pipeline)
    assert "scope" not in pn.Pipeline([pn.Term(pn.l1)]).to_config()[0]
