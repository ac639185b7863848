"""Random arrays: ordinary numbers, numbers of every size, and the ends of each dtype."""

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
SHAPES = [(), (1,), (4,), (0,), (2, 3), (3, 2), (0, 3), (2, 0), (2, 1, 3)]
"""Few: JAX compiles every operation for each."""


class Limits(NamedTuple):
    """Of a dtype."""

    precision: float
    tiny: float
    least: float
    """The smallest number above 0."""
    largest: float


def limits(dtype: str) -> Limits:
    info = ml_dtypes.finfo(DTYPES[dtype])
    return Limits(*(float(number) for number in (info.eps, info.smallest_normal, info.smallest_subnormal, info.max)))


def wide(dtype: str) -> str:
    """The dtype that is computed in."""
    return dtype if dtype == "float64" else "float32"


def rounded(x: Any, dtype: str) -> np.ndarray:
    """As the dtype has it, in float64."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float64).astype(DTYPES[dtype]).astype(np.float64)


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Any floats."""
    ends = limits(dtype)
    kind = rng.integers(5)
    ordinary = rng.normal(size=shape)
    if kind == 0:
        drawn = ordinary
    elif kind == 1:
        drawn = ordinary * 10.0 ** rng.uniform(math.log10(ends.tiny), math.log10(ends.largest), size=shape)
    elif kind == 2:
        drawn = ordinary * 10.0 ** rng.uniform(math.log10(ends.tiny), math.log10(ends.largest))
    elif kind == 3:
        drawn = np.round(2 * ordinary)
    else:
        edges = [0.0, -0.0, 1.0, -1.0, ends.least, -ends.tiny, ends.precision, ends.largest, -ends.largest]
        edges += [math.nan, math.inf, -math.inf] if rng.integers(2) else []
        drawn = np.where(rng.random(shape) < 0.5, rng.choice(edges, size=shape), ordinary)
    return rounded(drawn, dtype)


def logprobs(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Log-probabilities over the last axis, some of them −inf, rounded so that they hardly add up to one."""
    scores = rng.normal(size=shape) * 10.0 ** rng.integers(-6, 3)
    if not scores.size:
        return scores
    if rng.integers(3) == 0:
        scores = np.where(rng.random(shape) < 0.4, -math.inf, scores)
        scores[..., 0] = 0.0
    if rng.integers(8) == 0:
        scores = np.where(rng.random(shape) < 0.1, rng.choice([math.nan, math.inf, -1e30]), scores)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = scores - scores.max(-1, keepdims=True)
        return rounded(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)), dtype)


def mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray | None:
    """Flags, weights, nothing but zeros; or none."""
    kind = rng.integers(6)
    if kind == 0:
        return np.zeros(shape)
    if kind == 1:
        return rng.random(shape) < 0.5
    if kind == 2:
        return rounded(rng.random(shape) * rng.integers(0, 2, shape), "float16")
    return rng.integers(0, 3, shape) if kind == 3 else None
