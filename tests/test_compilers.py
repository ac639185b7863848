"""The same numbers inside torch.compile, jit and vmap, for every case, without graph breaks or warnings."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

import penalties as pn
from tests.cases import CASES, Case, one_of_each, sampled
from tests.libraries import DIFFERENTIABLE, JAX, TORCH

# An int seed draws with NumPy, outside any graph; inside torch.compile the drawn array itself is promised.
COMPILED = [case for case in CASES if "sample_size" not in case.options or "seed" in case.options]
COMPILED = [case for case in COMPILED if case.name != "interpolated_gradient_penalty" or "seed" in case.options]
FIRST_OF_EACH = list({case.name: case for case in reversed(COMPILED)}.values())

needs_torch = pytest.mark.skipif(TORCH not in DIFFERENTIABLE, reason="PyTorch was not chosen")
needs_jax = pytest.mark.skipif(JAX not in DIFFERENTIABLE, reason="JAX was not chosen")


def batches(case: Case, count: int = 1) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(10)
    return [list(case.make(rng)) for _ in range(count)]


def check_compiled(case: Case, backend: str) -> None:
    fn = case.on(TORCH)
    compiled = torch.compile(fn, fullgraph=True, backend=backend)
    for inputs in batches(case, 2):
        plain = [TORCH.array(x).requires_grad_() for x in inputs]
        traced = [x.detach().clone().requires_grad_() for x in plain]
        expected, found = fn(*plain), compiled(*traced)
        torch.testing.assert_close(found, expected)
        with torch._dynamo.config.patch(error_on_recompile=True):
            compiled(*traced)
        slopes = torch.autograd.grad(expected.sum(), plain, allow_unused=True, materialize_grads=True)
        found_slopes = torch.autograd.grad(found.sum(), traced, allow_unused=True, materialize_grads=True)
        for slope, right in zip(found_slopes, slopes, strict=True):
            torch.testing.assert_close(slope, right)


@needs_torch
@pytest.mark.parametrize("case", one_of_each(COMPILED))
def test_torch_compile_traces_without_a_break(case: Case) -> None:
    check_compiled(case, "aot_eager")


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("case", FIRST_OF_EACH, ids=lambda case: case.name)
def test_torch_compile_with_the_real_compiler(case: Case) -> None:
    check_compiled(case, "inductor")


@needs_torch
@pytest.mark.parametrize("case", sampled(CASES))
def test_torch_vmap_is_a_loop(case: Case) -> None:
    fn = case.on(TORCH)
    rows = [[TORCH.array(x) for x in inputs] for inputs in batches(case, 3)]
    found = torch.func.vmap(fn)(*[torch.stack(column) for column in zip(*rows, strict=True)])
    torch.testing.assert_close(found, torch.stack([fn(*row) for row in rows]).detach())


@needs_torch
@pytest.mark.parametrize("case", sampled(CASES))
def test_torch_func_grad_is_autograd(case: Case) -> None:
    fn = case.on(TORCH)
    inputs = [TORCH.array(x) for x in batches(case)[0]]
    found = torch.func.grad(lambda *x: fn(*x).sum(), argnums=tuple(range(len(inputs))))(*inputs)
    for slope, right in zip(found, TORCH.raw_gradients(lambda *x: fn(*x).sum(), *inputs), strict=True):
        torch.testing.assert_close(slope, right)


@needs_jax
@pytest.mark.parametrize("case", one_of_each(CASES))
def test_jax_jit_and_vmap(case: Case) -> None:
    fn = case.on(JAX)
    rows = [[JAX.array(x) for x in inputs] for inputs in batches(case, 3)]
    jitted = jax.jit(fn)
    expected = np.stack([JAX.numpy(fn(*row)) for row in rows])
    np.testing.assert_allclose(np.stack([JAX.numpy(jitted(*row)) for row in rows]), expected, rtol=1e-5, atol=1e-6)
    batched = jax.jit(jax.vmap(fn))(*[jax.numpy.stack(column) for column in zip(*rows, strict=True)])
    np.testing.assert_allclose(JAX.numpy(batched), expected, rtol=1e-5, atol=1e-6)


@needs_jax
@pytest.mark.parametrize("case", FIRST_OF_EACH, ids=lambda case: case.name)
def test_jax_forward_mode_agrees_with_reverse_mode(case: Case) -> None:
    fn = case.on(JAX)
    inputs = [JAX.array(x) for x in batches(case)[0]]
    scalar = lambda *x: fn(*x).sum()
    forward, reverse = jax.jit(lambda *x: (jax.jacfwd(scalar)(*x), jax.jacrev(scalar)(*x)))(*inputs)
    np.testing.assert_allclose(JAX.numpy(forward), JAX.numpy(reverse), rtol=1e-5, atol=1e-6)


@needs_jax
@pytest.mark.slow
def test_debug_nans_finds_nothing_at_the_edges() -> None:
    """No intermediate NaN either: `jax_debug_nans` would raise on it."""
    p = JAX.array([[0.0, -np.inf], [-0.5, -1.0]])
    q = JAX.array([[-np.inf, 0.0], [-np.inf, -np.inf]])
    zeros = JAX.array(np.zeros((2, 3)))
    with jax.debug_nans(True):
        jax.grad(lambda x: pn.js_divergence(x, q) + pn.entropy(x))(p)
        jax.grad(lambda x: pn.kl_divergence(x, p))(p)
        jax.grad(lambda x: pn.orthogonality(x) + pn.output_magnitude(x) + pn.l1(x))(zeros)
        jax.grad(lambda x: pn.consistency(x, zeros, metric="cosine"))(zeros)
        jax.grad(lambda x: pn.gradient_penalty(lambda z: (z * z).sum(-1), x))(zeros)


@needs_torch
@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_a_compiled_function_takes_options_from_its_caller(shape: tuple[int, ...]) -> None:
    """Options may be arguments of the compiled function; a new value is a new constant, not an error."""

    @torch.compile(fullgraph=True, backend="aot_eager")
    def fn(x: torch.Tensor, ratio: float, mode: str) -> Any:
        return pn.elastic_net(x, l1_ratio=ratio) + pn.entropy(x, mode=mode, logits=True)

    x = TORCH.array(np.random.default_rng(11).normal(size=shape))
    for ratio, mode in ((0.5, "penalty"), (0.25, "bonus"), (0.75, "bonus"), (0.8, "bonus")):
        expected = pn.elastic_net(x, l1_ratio=ratio) + pn.entropy(x, mode=mode, logits=True)
        torch.testing.assert_close(fn(x, ratio, mode), expected)


@needs_torch
def test_compile_of_ragged_lists_and_parameters() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def fn(leaves: list[torch.Tensor]) -> torch.Tensor:
        return pn.l1(leaves) + pn.l2({"a": leaves}, center="mean") + pn.elastic_net(tuple(leaves), reduction="mean")

    leaves = [torch.nn.Parameter(TORCH.array(np.random.default_rng(12).normal(size=n))) for n in (3, 5, 4)]
    flat = torch.cat(list(leaves))
    expected = pn.l1(flat) + pn.l2(flat, center="mean") + pn.elastic_net(flat, reduction="mean")
    found = fn(leaves)
    torch.testing.assert_close(found, expected)
    found.backward()
    assert all(leaf.grad is not None for leaf in leaves)


def test_valid_logprobs_compiles_too() -> None:
    """It returns bools and has no gradient, so it is not among the cases."""
    rows = np.array([[0.0, -np.inf], [-np.inf, -np.inf], [np.nan, 0.0]])
    expected = [True, False, False]
    if TORCH in DIFFERENTIABLE:
        x = TORCH.array(rows)
        assert torch.compile(pn.valid_logprobs, fullgraph=True, backend="aot_eager")(x).tolist() == expected
        assert torch.func.vmap(pn.valid_logprobs)(x).tolist() == expected
    if JAX in DIFFERENTIABLE:
        assert jax.jit(pn.valid_logprobs)(JAX.array(rows)).tolist() == expected
        assert jax.vmap(pn.valid_logprobs)(JAX.array(rows)).tolist() == expected
