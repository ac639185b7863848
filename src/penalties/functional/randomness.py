"""Draws from a `seed`: a whole number, the library's own generator or key, or the drawn array itself."""

from typing import Any

import numpy as np

from ..backends import Backend, owner
from ..errors import OptionError, ShapeError
from .options import is_whole

__all__ = ["check_seed", "draw_rows", "draw_uniform"]


def check_seed(function: str, ops: Backend, seed: Any) -> None:
    """Refuse what nothing can be drawn from."""
    if not (ops.draws(seed) or owner(seed) is ops or (is_whole(seed) and seed >= 0)):
        expected = f"a whole number of at least 0, {ops.GENERATOR}, or the drawn {ops.LIBRARY} array"
        raise OptionError(function, "seed", seed, expected)


def draw_uniform(function: str, ops: Backend, seed: Any, count: int, like: Any) -> Any:
    """`count` numbers from [0, 1); a whole number as seed gives the same ones in every backend."""
    if ops.draws(seed):
        return ops.uniform(seed, count, like)
    if owner(seed) is ops:
        return _given(function, seed, count, "one number per sample")
    return ops.constant(np.random.default_rng(int(seed)).random(count), like)


def draw_rows(function: str, ops: Backend, seed: Any, total: int, count: int, like: Any) -> Any:
    """`count` different row numbers below `total`; a whole number as seed gives the same ones in every backend."""
    if ops.draws(seed):
        return ops.choice(seed, total, count, like)
    if owner(seed) is ops:
        return _given(function, seed, count, "one row number per sampled row")
    return ops.constant(np.random.default_rng(int(seed)).choice(total, count, replace=False), like)


def _given(function: str, drawn: Any, count: int, meaning: str) -> Any:
    if tuple(drawn.shape) != (count,):
        raise ShapeError(f"{function}: seed has shape {tuple(drawn.shape)}; expected ({count},), {meaning}")
    return drawn
