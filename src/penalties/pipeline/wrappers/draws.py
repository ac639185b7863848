"""Random directions for the wrappers that try a term beside its inputs."""

import math
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ...backends import Backend
from ...functional.options import is_whole

__all__ = ["Draws", "draws_of", "prepare"]

_OWN: Final = 0x5E1F
"""Folded into every seed: a function that has its own seed, perhaps the same number, draws from it by itself, and
directions that are its noise would bias the estimate."""


class Draws:
    """Draws of arrays, one after another, from one whole number or one key of JAX.

    A whole number draws the same ones in every library.
    """

    def __init__(self, seed: Any) -> None:
        """Nothing is drawn yet."""
        self._generator = np.random.default_rng((int(seed), _OWN)) if is_whole(seed) else None
        self._key: Any = seed
        self._drawn: int = 0

    def signs(self, ops: Backend, like: Any, count: int) -> Any:
        """−1 or +1 with equal odds, for so many arrays of the shape and dtype of `like`."""
        shape = (count, *like.shape)
        if self._generator is not None:
            # Three times as fast as whole numbers, for a few.
            return ops.constant(np.copysign(1.0, self._generator.random(shape) - 0.5), like)
        return ops.where(self._uniform(ops, like, count) < 0.5, -1.0, 1.0).reshape(shape)

    def normal(self, ops: Backend, like: Any, count: int) -> Any:
        """Of the standard normal distribution, for so many arrays of the shape and dtype of `like`."""
        shape = (count, *like.shape)
        if self._generator is not None:
            return ops.constant(self._generator.standard_normal(shape), like)
        # By Box and Muller; 1 − u is never 0.
        radius = ops.sqrt(-2.0 * ops.log(1.0 - self._uniform(ops, like, count)))
        return (radius * ops.cos(2.0 * math.pi * self._uniform(ops, like, count))).reshape(shape)

    def _uniform(self, ops: Backend, like: Any, count: int) -> Any:
        import jax

        self._drawn += 1
        key = jax.random.fold_in(jax.random.fold_in(self._key, _OWN), self._drawn)
        return ops.uniform(key, count * math.prod(like.shape), like)


def _start(seed: Any) -> Draws:
    return Draws(seed)


_outside: Callable[[Any], Draws] | None = None


def prepare() -> None:
    """Say to torch.compile, where PyTorch is loaded, that draws are made outside of its graphs, and why."""
    global _outside
    torch = sys.modules.get("torch")
    if _outside is None and torch is not None:
        why = (
            "SPSA and EvolutionStrategies draw from NumPy's generators, which cannot be in a graph: call the pipeline "
            "outside of torch.compile"
        )
        _outside = torch.compiler.disable(_start, reason=why)


def draws_of(seed: Any) -> Draws:
    """New draws from a whole number or a key of JAX."""
    return (_outside or _start)(seed)
