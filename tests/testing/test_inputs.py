"""check_term: how inputs are found, and what is an edge."""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

import penalties as pn
from penalties.testing import check_term
from tests.libraries import JAX
from tests.testing.cases import (
    INPUTS,
    X,
    Y,
    failure,
    lambda_named,
    needs_torch,
    result,
    squares,
    status,
)


class Layer(NamedTuple):
    weight: Any
    bias: Any


@dataclass
class Batch:
    logits: Any


def test_nests_keep_their_structure(autodiff: Any) -> None:
    if autodiff is JAX:
        jax.tree_util.register_dataclass(Registered, data_fields=["table", "nothing"], meta_fields=[])
    nest = {
        "layer": Layer(autodiff.array(X), [autodiff.array(Y[0]), None]),
        "steps": autodiff.array([1, 2], "int32"),
        **({"more": Registered(autodiff.array(Y), None)} if autodiff is JAX else {}),
    }

    def size(params):
        extra = (params["more"].table ** 2).sum() if "more" in params else 0.0
        layer = params["layer"]
        return (layer.weight**2).sum() + 2 * (layer.bias[0] ** 2).sum() + extra + 0.0 * params["steps"].sum()

    count = 27 if autodiff is JAX else 15
    assert status("gradient", size, {"params": nest}, edges=["zeros", "one_row", "half"])[1].startswith(str(count))

    def one_wrong(params):
        first, second = params
        return pn.Evaluation((first**2).sum() + second.sum(), gradient={"params": [2 * first, 0 * second]})

    said = failure("gradient", one_wrong, [autodiff.array(X), autodiff.array(Y)])
    assert re.match(r"params\[1\]\[\d, \d\]: gradient 0, finite difference 1; wrong in 13 of 25 directions", said), said


@dataclass
class Registered:
    table: Any
    nothing: Any


@needs_torch
def test_inputs_are_found_as_a_pipeline_finds_them() -> None:
    model = torch.nn.Linear(3, 2)
    assert status("gradient", "l1", model.parameters())[1].startswith("8 elements of x")
    term = pn.Term(pn.l2, inputs="batch.logits")
    inputs = {"batch": Batch(torch.tensor(X)), "unused": object()}
    for wrt in (None, "batch", ["batch.logits"]):
        assert "elements of batch.logits" in status("gradient", term, inputs, wrt=wrt)[1]


@needs_torch
def test_inputs_that_are_not_arrays_are_passed_through(autodiff: Any) -> None:
    def scaled(data, logprobs):
        return (logprobs * len(data)).sum()

    verdict = check_term(scaled, {"data": ["a", "b", "c", "d"], "logprobs": autodiff.array(X)}, edges=["one_row"])
    assert result(verdict, "edge one_row").detail == f"value {X[:1].sum():.6g}, gradient finite"
    assert result(verdict, "compile").status == "passed"
    table = lambda_named(lambda x, table: (x * float(table.sum())).sum())
    said = status("gradient", table, {"table": np.ones(4), "x": autodiff.array(X)})[1]
    assert said.startswith("12 elements of x and")
    counted = lambda_named(lambda data: float(len(data)), differentiable=False)
    assert status("compile", counted, {"data": ["a"]}, compile=True) == ("skipped", "NumPy has no compiler")
    assert status("edge one_row", counted, {"data": ["a"]}, edges=["one_row"]) == ("skipped", "no input has rows")


def test_a_term_that_needs_the_step_gets_one(autodiff: Any) -> None:
    late = lambda_named(lambda x, step: (x**2).sum() * (1 + step))
    assert check_term(late, autodiff.array(X), edges=())


def test_a_nan_gradient_at_zero_fails(autodiff: Any) -> None:
    length = lambda_named(lambda x: ((x**2).sum()) ** 0.5)
    said = failure("edge zeros", length, autodiff.array(X), edges=["zeros", "large"])
    assert said.startswith("the gradient at x has")
    assert said.endswith("the value is 0")


def test_overflow_in_half_precision_fails(library: Any) -> None:
    x = library.array(np.full(4, 300.0))
    assert failure("edge half", squares, x, edges=["half", "one_row"]) == "the value is inf"
    assert check_term("l2", x, edges=["half"], compile=False)


def test_overflow_of_large_values_fails(autodiff: Any) -> None:
    exp = {"torch": torch.exp, "jax": jnp.exp}[autodiff.name]
    assert failure("edge large", lambda_named(lambda x: exp(x).sum()), autodiff.array(X), edges=["large", "tiny"])
    assert status("edge large", squares, autodiff.array([0.0]), edges=["large"])[1] == "value 1e+08, gradient finite"


def test_a_deliberate_error_passes_and_an_accident_fails(library: Any) -> None:
    def refuses(x):
        if x.shape[0] == 1:
            raise pn.ShapeError("refuses: needs two rows")
        return (x**2).sum()

    said = "rejected: refuses: raised ShapeError: refuses: needs two rows"
    assert status("edge one_row", refuses, library.array(X), edges=["one_row"]) == ("passed", said)
    accident = lambda_named(lambda x: (x[1] ** 2).sum())
    if library is not JAX:  # which clamps an index
        assert "raised IndexError" in failure("edge one_row", accident, library.array(X), edges=["one_row"])


def test_own_edges_are_merged_into_the_inputs(library: Any) -> None:
    term = pn.Term(pn.kl_estimate, inputs={"logprobs": "logprobs", "reference": "reference", "mask": "mask"})
    inputs = {key: library.array(value) for key, value in INPUTS["kl_estimate"][0].items()}
    edges = {"all masked": {"mask": library.array(np.zeros((2, 4)))}, "zeros": None}
    verdict = check_term(term, inputs, wrt="logprobs", edges=edges, compile=False)
    assert [check.name for check in verdict.checks[2:4]] == ["edge all masked", "edge zeros"]
    assert result(verdict, "edge all masked").detail.startswith("value 0")
    own = {"nan": library.array([np.nan])}
    assert failure("edge nan", "l1", library.array([1.0]), edges=own) == "the value is nan"


def test_own_gradients_are_looked_at_in_numpy_too() -> None:
    inverse = lambda_named(lambda x: pn.Evaluation((x**0).sum(), gradient={"x": 0.0 / x}))
    assert failure("edge zeros", inverse, X, edges=["zeros"]).startswith("the gradient at x has nan")
