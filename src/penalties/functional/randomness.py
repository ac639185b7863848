"""Draws from a `seed`: a whole number, the library's own generator or key, or the drawn array itself."""

from typing import Any

import numpy as np

from ..backends import Backend, owner
from ..errors import BackendError, OptionError, ShapeError
from .options import is_whole

__all__ = ["check_seed", "draw_rows", "draw_uniform"]


def check_seed(function: str, ops: Backend, seed: Any) -> None:
    """Raise `OptionError` unless the seed is something to draw from."""
    if not ((is_whole(seed) and seed >= 0) or owner(seed) is ops or ops.draws(seed)):
        expected = f"a whole number of at least 0, {ops.GENERATOR}, or the drawn {ops.LIBRARY} array"
        raise OptionError(function, "seed", seed, expected)


def draw_uniform(function: str, ops: Backend, seed: Any, count: int, like: Any) -> Any:
    """`count` numbers from [0, 1); a whole number as seed draws the same ones in every backend."""
    if is_whole(seed):
        return ops.constant(np.random.default_rng(int(seed)).random(count), like)
    if ops.draws(seed):
        return ops.uniform(seed, count, like)
    return _given(function, seed, count, "float", "one number per sample")


def draw_rows(function: str, ops: Backend, seed: Any, total: int, count: int, like: Any) -> Any:
    """`count` different row numbers below `total`; a whole number as seed draws the same ones in every backend."""
    if is_whole(seed):
        return ops.constant(np.random.default_rng(int(seed)).choice(total, count, replace=False), like)
    if ops.draws(seed):
        return ops.choice(seed, total, count, like)
    return _given(function, seed, count, "int", "one row number per sampled row")


def _given(function: str, drawn: Any, count: int, kind: str, meaning: str) -> Any:
    if tuple(drawn.shape) != (count,):
        raise ShapeError(f"{function}: seed has shape {tuple(drawn.shape)}; expected ({count},), {meaning}")
    if kind not in str(drawn.dtype):
        raise BackendError(f"{function}: seed has dtype {drawn.dtype}; expected {kind}s, {meaning}")
    return drawn
