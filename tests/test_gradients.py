"""First and second derivatives of every case against finite differences."""

import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.cases import CASES, Case, one_of_each, sampled
from tests.libraries import DIFFERENTIABLE, JAX, TORCH


def inputs(case: Case) -> list[np.ndarray]:
    return list(case.make(np.random.default_rng(zlib.crc32(case.id.encode()))))


@pytest.mark.skipif(TORCH not in DIFFERENTIABLE, reason="PyTorch was not chosen")
@pytest.mark.parametrize("case", sampled(CASES))
def test_torch_agrees_with_finite_differences(case: Case) -> None:
    fn = case.on(TORCH)
    arrays = [TORCH.array(x, "float64").requires_grad_() for x in inputs(case)]
    assert torch.autograd.gradcheck(fn, arrays)
    if case.order > 1:
        assert torch.autograd.gradgradcheck(fn, arrays, atol=1e-4, fast_mode=True)


def along(fn: Callable[..., Any], direction: list[Any]) -> Callable[..., Any]:
    """The derivative of a scalar function in one direction, by JAX's reverse mode."""
    return lambda *x: sum((g * d).sum() for g, d in zip(JAX.raw_gradients(fn, *x), direction, strict=True))


@pytest.mark.skipif(JAX not in DIFFERENTIABLE, reason="JAX was not chosen")
@pytest.mark.parametrize("case", one_of_each(CASES))
def test_jax_agrees_with_finite_differences(case: Case) -> None:
    """In one program: `jax.test_util.check_grads` compiles several for each order."""
    fn, points, rng = case.on(JAX), inputs(case), np.random.default_rng(17)
    direction, other = ([JAX.array(rng.normal(size=x.shape), "float64") for x in points] for _ in range(2))

    def value(*arrays: Any) -> Any:
        each = fn(*arrays)
        return (jnp.cos(jnp.arange(each.size)) * each.ravel()).sum()

    functions = [value, along(value, other)][: case.order]
    compiled = jax.jit(lambda *x: ([f(*x) for f in functions], [along(f, direction)(*x) for f in functions]))
    step = 1e-5
    (below, _), (_, slopes), (above, _) = (
        compiled(*[x + h * d for x, d in zip(points, direction, strict=True)]) for h in (-step, 0, step)
    )
    differences = (np.array(above) - np.array(below)) / (2 * step)
    np.testing.assert_allclose(np.array(slopes), differences, rtol=1e-4, atol=1e-5)


def test_every_penalty_has_a_case() -> None:
    import penalties as pn
    from penalties import functional

    looks_at_values = {"validate", "valid_logprobs"}
    assert {case.name for case in CASES} == set(functional.__all__) - looks_at_values
    assert set(functional.__all__) <= set(pn.__all__)
