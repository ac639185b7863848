"""A built-in penalty is the same inline and elsewhere: value, gradients, metrics."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor

import penalties as pn
from penalties.functional.penalty import facts_of
from penalties.pipeline.catalogue import BUILT_IN


def logprobs(seed: int, *shape: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=shape)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def arguments(name: str, make: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What a penalty takes, by its example: floats by name, larger; and functions and labels, made into arrays."""
    facts = facts_of(BUILT_IN[name])
    assert facts is not None
    floats: dict[str, np.ndarray] = {}
    others: dict[str, Any] = {}
    for key, part in zip(inspect.signature(facts.function).parameters, facts.example(), strict=False):
        if callable(part):
            others[key] = part
        elif key in facts.labels:
            others[key] = make(np.array([3, 0, 6, 5, 1]))
        else:
            floats[key] = logprobs(len(floats), 5, 7) if np.ndim(part) else np.array(part)
    return floats, others


def check_torch(executor: pn.Executor, name: str, where: Any) -> None:
    floats, others = arguments(name, torch.tensor)

    def run(where: Any, runner: Any) -> tuple[list[Tensor], pn.LossOutput]:
        leaves = {key: torch.tensor(x, requires_grad=True) for key, x in floats.items()}
        out = runner(pn.Pipeline([pn.Term(name, 0.3, runs=where)]), {**leaves, **others})
        (2.0 * out.total).backward()
        return [out.total.detach(), *(leaf.grad for leaf in leaves.values())], out

    expected, inline = run("inline", lambda pipeline, inputs: pipeline(**inputs))
    found, out = run(where, executor.run)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    assert out.metrics() == pytest.approx(inline.metrics(), rel=1e-6)
    assert out[name].grad_error is None


def check_jax(executor: pn.Executor, name: str, where: Any) -> None:
    floats, others = arguments(name, jnp.asarray)

    def inline(floats: Any) -> Any:
        return 2.0 * pn.Pipeline([pn.Term(name, 0.3)])(**floats, **others).total

    def away(floats: Any) -> Any:
        return 2.0 * executor.run(pn.Pipeline([pn.Term(name, 0.3, runs=where)]), {**floats, **others}).total

    given = {key: jnp.asarray(x, jnp.float32) for key, x in floats.items()}
    expected, gradients = jax.value_and_grad(inline)(given)
    value, found = jax.value_and_grad(away)(given)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for key, gradient in gradients.items():
        # In float32 an entry whose summands cancel is only as exact as the largest.
        np.testing.assert_allclose(found[key], gradient, rtol=1e-6, atol=1e-6 * float(abs(gradient).max()))
