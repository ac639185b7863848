"""Statistics of paired differences: intervals, tests with Holm's correction, power, and fronts.

Everything works on arrays with any number of leading axes, so that a simulation of thousands of ablations is one call.
"""

import functools
import importlib
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from ...errors import MissingLibraryError

__all__ = ["CONFIDENCE", "FEWEST", "LEVEL", "POWER", "Numbers", "Paired", "detectable", "holm", "on_front", "paired"]

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

CONFIDENCE: Final = 0.95
"""The coverage of an interval."""
LEVEL: Final = 0.05
"""The most that the probability of any false claim in an ablation may be."""
FEWEST: Final = 3
"""Seeds without which nothing is claimed."""
POWER: Final = 0.8
"""The probability with which an effect of the size that `detectable` returns would be found."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Of each comparison, in arrays of one shape; NaN where there are too few differences."""

    count: Numbers
    mean: Numbers
    deviation: Numbers
    low: Numbers
    """The interval of the mean, for each comparison by itself."""
    high: Numbers
    p: Numbers
    """That the mean is 0, two-sided."""
    adjusted: Numbers
    """The same, adjusted for all comparisons by Holm's method."""
    claimed: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether there is an effect: the adjusted p is below `LEVEL`, with enough seeds."""


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def paired(differences: Numbers) -> Paired:
    """The t-test of paired differences, which lie along the last axis, of the comparisons along the one before.

    A difference that is missing is NaN.

    >>> found = paired(np.array([[1.0, 1.2, 0.9], [0.1, -0.2, 0.2]]))
    >>> found.claimed.tolist(), found.adjusted.round(4).tolist()
    ([True, False], [0.0144, 0.8075])
    """
    special = _special()
    there = np.isfinite(differences)
    count = there.sum(-1).astype(float)
    mean = np.where(there, differences, 0.0).sum(-1) / count
    squares = np.where(there, differences - mean[..., None], 0.0) ** 2
    # Without a degree of freedom everything is NaN.
    freedom = np.where(count > 1, count - 1, np.nan)
    deviation = np.sqrt(squares.sum(-1) / freedom)
    error = deviation / np.sqrt(count)
    half = special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * error
    # Losses that are equal to the last bit show no effect.
    p = np.where((mean == 0) & (deviation == 0), 1.0, 2 * special.stdtr(freedom, -np.abs(mean / error)))
    adjusted = holm(p)
    return Paired(count, mean, deviation, mean - half, mean + half, p, adjusted, (adjusted < LEVEL) & (count >= FEWEST))


def holm(p: Numbers) -> Numbers:
    """The p-values along the last axis, adjusted by Holm's step-down method; one that is NaN counts as a comparison.

    >>> holm(np.array([0.01, 0.04, 0.03])).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, -1)
    left: Numbers = np.arange(p.shape[-1], 0, -1, dtype=float)
    scaled: Numbers = np.take_along_axis(p, order, -1) * left
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(scaled, -1), 1.0), -1)
    return adjusted


def detectable(seeds: int, comparisons: int) -> float:
    """The effect that would be found with a probability of 80 %, in standard deviations of the differences.

    By the noncentral t distribution, at the first step of Holm's method: the effect is the only one.

    >>> round(detectable(5, comparisons=4), 1), round(detectable(10, comparisons=4), 1)
    (2.5, 1.3)
    """
    special = _special()
    freedom = seeds - 1
    least = special.stdtrit(freedom, 1 - LEVEL / comparisons / 2)
    # The other tail has a probability of less than 1e-6.
    return float(special.nctdtrinc(freedom, 1 - POWER, least) / seeds**0.5)


def on_front(points: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows no other row beats: one that is nowhere higher, and somewhere lower.

    >>> on_front(np.array([[1.0, 3.0], [2.0, 1.0], [2.0, 3.0]])).tolist()
    [True, True, False]
    """
    lower = (points[:, None] <= points).all(-1) & (points[:, None] < points).any(-1)
    return np.logical_not(np.any(lower, axis=0))


@functools.cache
def _special() -> Any:
    try:
        return importlib.import_module("scipy.special")
    except ImportError as error:
        raise MissingLibraryError("the statistics of an ablation", "scipy", extra="cli") from error
