"""First and second derivatives of every case against finite differences."""

import zlib

import jax
import numpy as np
import pytest
import torch
from jax.test_util import check_grads

from tests.cases import CASES, Case, sampled
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


@pytest.mark.skipif(JAX not in DIFFERENTIABLE, reason="JAX was not chosen")
@pytest.mark.parametrize("case", sampled(CASES))
def test_jax_agrees_with_finite_differences(case: Case) -> None:
    fn = jax.jit(case.on(JAX))
    check_grads(fn, [JAX.array(x, "float64") for x in inputs(case)], order=case.order, modes=("rev",), rtol=1e-4)


def test_every_penalty_has_a_case() -> None:
    import penalties as pn
    from penalties import functional

    looks_at_values = {"validate", "valid_logprobs"}
    assert {case.name for case in CASES} == set(functional.__all__) - looks_at_values
    assert set(functional.__all__) <= set(pn.__all__)
