"""check_term: what ships passes, and a value that is wrong fails first."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.pipeline.catalogue import BUILT_IN
from penalties.testing import Check, check_term
from tests.libraries import JAX, NUMPY, TORCH
from tests.testing.cases import (
    INPUTS,
    X,
    Y,
    converted,
    failure,
    lambda_named,
    needs_torch,
    result,
    status,
)


@needs_torch
@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_penalties_pass(name: str) -> None:
    _passes(TORCH, name, compile=False)


@pytest.mark.slow  # torch.compile takes a second, and JAX compiles every new shape and dtype, operation by operation
@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_penalties_pass_when_compiled(name: str, autodiff: Any) -> None:
    _passes(autodiff, name, compile=True)


def _passes(autodiff: Any, name: str, *, compile: bool) -> None:
    inputs, options = INPUTS[name]
    names = {parameter: parameter for parameter in inputs}
    term = pn.Term(name, inputs=names, options=converted(autodiff, options))
    floats = [key for key, value in inputs.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    wrt = [key for key in floats if key != "mask"]
    # The ratio of two probabilities overflows where they are e¹⁰⁰⁰⁰ apart; a drawn ε belongs to as many rows, and a
    # scalar has none.
    left_out = {"kl_estimate": ["large"], "interpolated_gradient_penalty": ["one_row"], "precomputed": ["one_row"]}
    left_out = left_out.get(name, [])
    edges = [edge for edge in ("zeros", "tiny", "large", "one_row", "half") if edge not in left_out]
    if autodiff is JAX:
        edges = [edge for edge in edges if edge not in ("one_row", "half")]
    verdict = check_term(term, converted(autodiff, inputs), wrt=wrt, edges=edges, compile=compile)
    assert verdict.ok
    skipped = ["state"] if compile else ["compile", "state"]
    assert [check.name for check in verdict.checks if check.status != "passed"] == skipped


@needs_torch
@pytest.mark.parametrize("wrap", [pn.EMA, pn.Normalized])
def test_wrappers_pass(wrap: Callable[..., pn.Term]) -> None:
    # The scale of Normalized is held constant, so differences of its value are not its gradient.
    wrt = () if wrap is pn.Normalized else None
    verdict = check_term(wrap(pn.Term(pn.l1)), torch.tensor(X), wrt=wrt, compile=wrap is pn.EMA)
    assert result(verdict, "state") == Check("state", "passed", "accepted, returned, saved and loaded")


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: x**2, r"returned an array of shape \(4, 3\)"),
        (lambda x: float((x**2).sum()), "returned a plain number"),
        (lambda x: None, "returned None"),
        (lambda x: ((x**2).sum(), {"who": "me"}), "returned the metric who as a str"),
        (lambda x: {}["nothing"], "raised KeyError"),
        (lambda x: (x**2).sum() / 0.0, "it is inf at the given inputs"),
    ],
)
def test_a_wrong_value_fails_before_anything_else(library: Any, fn: Callable[..., Any], said: str) -> None:
    verdict = check_term(pn.Term(fn, name="term"), library.array(X), raises=False)
    value, others = verdict.checks
    assert value.name == "value"
    assert value.status == "failed"
    assert re.search(said, value.detail), value.detail
    assert others == Check("others", "skipped", "they need a valid value")


def test_a_value_that_changes_fails(library: Any) -> None:
    draws = iter([1.0, 2.0])
    said = failure("value", pn.Term(lambda x: (x * 0.0).sum() + next(draws), name="noise"), library.array(X))
    assert said.startswith("1 at first and 2 when repeated; ")


@pytest.mark.parametrize("mutable", [NUMPY, TORCH], ids=lambda mutable: mutable.name)
def test_modifying_an_input_fails_and_does_not_affect_the_authors(mutable: Any) -> None:
    def doubles(params):
        params[1].__imul__(2.0)
        return params[0].sum() + params[1].sum()

    given = [mutable.array(X), mutable.array(Y)]
    assert failure("value", doubles, given) == "it modifies its input params[1] in place; make a new array"
    np.testing.assert_array_equal(mutable.numpy(given[1]), Y)


def test_metrics_are_counted() -> None:
    def two(x):
        return (x**2).sum(), {"size": x.size, "most": x.max()}

    assert status("value", two, np.ones(3)) == ("passed", "3, float64, repeatable, 2 metrics")
    assert status("value", lambda_named(lambda x: (x.sum(), {"n": 1})), np.ones(3))[1].endswith(", 1 metric")
