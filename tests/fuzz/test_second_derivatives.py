"""Second derivatives of what is not straight, where probabilities are tiny and slopes begin."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.fuzz import drawing
from tests.fuzz.cases import try_cases
from tests.fuzz.exact import Exact, choose, exp, expm1, given, log
from tests.fuzz.test_functions import BACKENDS, agree
from tests.libraries import JAX

SHAPE = (2, 3)
DELTA = 0.25


def smooth_l1(x: Any) -> Any:
    return pn.smooth_l1(x, delta=DELTA)


def kl_divergence(p: Any, q: Any) -> Any:
    return pn.kl_divergence(p, q, reduction="sum")


def js_divergence(p: Any, q: Any) -> Any:
    return pn.js_divergence(p, q, reduction="sum")


def entropy(p: Any) -> Any:
    return pn.entropy(p, reduction="sum")


def kl_estimate(p: Any, q: Any) -> Any:
    return pn.kl_estimate(p, q, reduction="sum")


def _of_js(a: Any, b: Any) -> list[Any]:
    p, q = exp(a), exp(b)
    both = p + q
    return [0.5 * (p * a - p * (log(both) - Exact(math.log(2), 1.0)) + p - p * (p / both)), -0.5 * (p * (q / both))]


SECOND: dict[Callable[..., Any], Callable[..., list[Any]]] = {
    smooth_l1: lambda x: [choose(abs(x) < DELTA, 1 / DELTA, 0)],
    kl_divergence: lambda a, b: [exp(a) * (a - b) + 2 * exp(a), -exp(a)],
    js_divergence: _of_js,
    entropy: lambda a: [-(exp(a) * a + 2 * exp(a))],
    kl_estimate: lambda a, b: [expm1(b - a) + 1, -(expm1(b - a) + 1)],
}
"""The derivatives of the gradient at the first input, element by element, by each input."""


def draw(rng: np.random.Generator, fn: Callable[..., Any], dtype: str, count: int) -> list[np.ndarray]:
    if fn is smooth_l1:
        inputs = [rng.choice([0.0, -0.0, 0.1, -0.2, 1.0, 1e-30, -1e5], SHAPE)]
    else:
        # In float32, exp(−80) is close to the smallest normal number, and its square is 0.
        lowest = 80 if dtype == "float32" else 700
        inputs = [-rng.random(SHAPE) * lowest ** rng.random(SHAPE) for _ in range(count)]
        if rng.integers(3) == 0:
            inputs = [inputs[0] for _ in inputs]
    return [drawing.rounded(x, dtype) for x in inputs]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", SECOND, ids=lambda fn: fn.__name__)
def test_second_derivatives(backend: Any, fn: Callable[..., Any]) -> None:
    if not backend.differentiates:
        pytest.skip("needs gradients")
    count = fn.__code__.co_argcount

    def slope(*arrays: Any) -> Any:
        if backend is JAX:
            return backend.raw_gradients(fn, *arrays)[0].sum()
        import torch

        return torch.autograd.grad(fn(*arrays), arrays[0], create_graph=True)[0].sum()

    def check(rng: np.random.Generator) -> None:
        dtype = str(rng.choice(["float32", "float64"]))
        inputs = draw(rng, fn, dtype, count)
        ends = drawing.limits(dtype)
        Exact.precision, Exact.tiny = ends.precision, ends.tiny
        found = backend.gradients(slope, *[backend.array(x, dtype) for x in inputs])
        for index, right in enumerate(SECOND[fn](*[given(x) for x in inputs])):
            agree(found[index], right, dtype, f"{fn.__name__}, by input {index}, at {[x.tolist() for x in inputs]}")

    try_cases(5 if backend is JAX else 15, check)
