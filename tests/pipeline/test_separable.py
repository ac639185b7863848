"""`Term(separable=)`: what your own function says about itself."""

import pickle
from typing import Any

import pytest

import penalties as pn


def own(x: Any) -> Any:
    return x.sum()


def reducing(x: Any, reduction: str = "mean") -> Any:
    return x.mean()


@pytest.mark.parametrize("separable", [True, "tokens", "sequences", False])
def test_it_is_kept_shown_copied_and_saved(separable: Any) -> None:
    term = pn.Term(f"{__name__}:own", name="own", scope="sum", separable=separable)
    assert term.separable == separable
    assert f"separable={separable!r}" in repr(term)
    assert term.replace(weight=2.0).separable == term.with_weight(2.0).separable == separable
    assert pickle.loads(pickle.dumps(term)) == term
    assert term != term.replace(separable=None)
    pipeline = pn.Pipeline([term])
    assert pipeline.to_config()[0]["separable"] == separable
    assert pn.Pipeline.from_config(pipeline.to_config()) == pipeline
    assert ("separable" in repr(pipeline)) == bool(separable)


@pytest.mark.parametrize(
    ("term", "summed"),
    [
        (pn.Term(own), None),
        (pn.Term(own, scope="step"), None),
        (pn.Term(own, scope="mean"), "mean"),
        (pn.Term(reducing), "mean"),
        (pn.Term(reducing, options={"reduction": "sum"}), "sum"),
        (pn.Term(reducing, scope="sum"), "sum"),
    ],
)
def test_how_rows_combine_is_said_by_the_scope_or_the_reduction(term: pn.Term, summed: str | None) -> None:
    assert term.summed == summed


@pytest.mark.parametrize("separable", ["rows", 1, 0.0, "", []])
def test_other_values_raise(separable: Any) -> None:
    with pytest.raises(pn.OptionError, match='separable=.*; expected True, False, "tokens", "sequences" or None'):
        pn.Term(own, scope="sum", separable=separable)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: pn.Term(own, separable=True), 'scope="sum" or "mean" too'),
        (lambda: pn.Term(own, scope="step", separable=True), 'scope="sum" or "mean" too'),
        (lambda: pn.Term(pn.l1, separable=True), "None: a penalty says so itself"),
        (
            lambda: pn.EMA(pn.Term(own, scope="sum", separable=True)),
            "None: a wrapper needs the whole batch",
        ),
    ],
)
def test_what_cannot_be_separable_raises(make: Any, expected: str) -> None:
    with pytest.raises(pn.OptionError, match=expected):
        make()
