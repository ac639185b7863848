"""Terms and inputs that the tests of check_term share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.testing import Check, Verdict, check_term
from tests.cases import EPSILON, TOKEN_MASK, log_softmax
from tests.libraries import JAX, LIBRARIES, TORCH

needs_torch = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
needs_jax = pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")


RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 3))
Y = RNG.normal(size=(4, 3))
LOGPROBS = log_softmax(X)
OTHER = log_softmax(Y)
TOKENS = -np.abs(RNG.normal(size=(2, 4))) - 0.1
REFERENCE = -np.abs(RNG.normal(size=(2, 4))) - 0.1


def result(verdict: Verdict, name: str) -> Check:
    (found,) = [check for check in verdict.checks if check.name == name]
    return found


def failure(name: str, term: Any, inputs: Any, **options: Any) -> str:
    """The detail of the one check that fails."""
    verdict = check_term(term, inputs, raises=False, **{"edges": (), "compile": False, **options})
    assert verdict.failed == (name,), str(verdict)
    assert not verdict.ok
    return result(verdict, name).detail


def status(name: str, term: Any, inputs: Any, **options: Any) -> tuple[str, str]:
    """The status and detail of a check, where none fails."""
    found = result(check_term(term, inputs, **{"edges": (), "compile": False, **options}), name)
    return found.status, found.detail


def lambda_named(fn: Callable[..., Any], **arguments: Any) -> pn.Term:
    return pn.Term(fn, name="term", **arguments)


def squares(x):
    return (x**2).sum()


def hinge(x):
    return (x * (x > 0)).sum()


def own_gradient(x):
    return pn.Evaluation((x**2).sum(), gradient={"x": 2 * x})


def wrong_gradient(x):
    return pn.Evaluation((x**2).sum(), gradient={"x": 3 * x})


def cubes(z):
    return (z**3).sum(-1)


INPUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{name: ({"x": X}, {}) for name in ("l1", "l2", "elastic_net", "smooth_l1")},
    **{name: ({"p": LOGPROBS, "q": OTHER}, {}) for name in ("kl_divergence", "js_divergence")},
    "entropy": ({"p": LOGPROBS}, {}),
    "cross_entropy": ({"p": LOGPROBS, "targets": np.arange(len(LOGPROBS)) % LOGPROBS.shape[-1]}, {}),
    "consistency": ({"a": X, "b": Y}, {}),
    "orthogonality": ({"x": X}, {}),
    "gradient_penalty": ({"fn": cubes, "x": X[:3]}, {}),
    "interpolated_gradient_penalty": ({"fn": cubes, "x": X[:3], "reference": Y[:3]}, {"seed": EPSILON}),
    "precomputed": ({"x": np.array(X[0, 0])}, {}),
    "output_magnitude": ({"y": X}, {}),
    "kl_estimate": ({"logprobs": TOKENS, "reference": REFERENCE, "mask": TOKEN_MASK}, {}),
    "entropy_estimate": ({"logprobs": TOKENS}, {}),
}


def converted(library: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Arrays of the library; labels stay whole numbers."""
    return {
        key: library.array(value, **({} if value.dtype.kind == "f" else {"dtype": str(value.dtype)}))
        if isinstance(value, np.ndarray)
        else value
        for key, value in given.items()
    }
