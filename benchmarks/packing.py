"""A norm of a list of arrays, which packs short ones into one, against a loop over them, in every library.

On PyTorch and JAX the backward is part of it. Short arrays must gain, and long ones, which are not packed, may lose
little.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

import penalties as pn

from .harness import FIXED_ALLOCATOR, Row, compare, in_process

Total = Callable[[Sequence[Any]], Any]

COUNT = 64
# Elements of an array, and the most times the loop. NumPy's own loop is so fast that 3 µs for each call through the
# library show, until the arrays are long.
LIMITS = {
    "NumPy": {64: 0.8, 4096: 2.2, 65536: 1.25},
    "PyTorch": {64: 0.35, 4096: 0.6, 65536: 1.2},
    "JAX": {64: 0.6, 4096: 1.2, 65536: 1.2},
}


def run(scale: float) -> list[Row]:
    return in_process("benchmarks.packing:rows", scale, FIXED_ALLOCATOR)


def rows(scale: float) -> list[Row]:
    found: list[Row] = []
    for library, limits in LIMITS.items():
        for size, most_ratio in limits.items():
            arrays = list(np.random.default_rng(0).standard_normal((COUNT, size), dtype=np.float32))
            plain, ours = (CALLS[library](total, arrays) for total in (looped, pn.l1))
            np.testing.assert_allclose(plain(), ours(), rtol=1e-4)
            case = f"{library}, l1 of {COUNT} arrays of {size}"
            found.append(compare(case, plain, ours, seconds=3.0 * scale, most_ratio=most_ratio))
    return found


def looped(arrays: Sequence[Any]) -> Any:
    return sum(abs(array).sum() for array in arrays)


def _numpy(total: Total, arrays: list[np.ndarray[Any, Any]]) -> Callable[[], Any]:
    return lambda: total(arrays)


def _torch(total: Total, arrays: list[np.ndarray[Any, Any]]) -> Callable[[], Any]:
    leaves = [torch.from_numpy(array).requires_grad_() for array in arrays]

    def call() -> Any:
        value = total(leaves)
        torch.autograd.grad(value, leaves)
        return value.detach()

    return call


def _jax(total: Total, arrays: list[np.ndarray[Any, Any]]) -> Callable[[], Any]:
    leaves = [jax.numpy.asarray(array) for array in arrays]
    gradient = jax.value_and_grad(total)
    return lambda: jax.block_until_ready(gradient(leaves))[0]


CALLS: dict[str, Callable[[Total, list[np.ndarray[Any, Any]]], Callable[[], Any]]] = {
    "NumPy": _numpy,
    "PyTorch": _torch,
    "JAX": _jax,
}
