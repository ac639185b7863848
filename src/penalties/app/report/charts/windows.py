"""Means over windows of steps, from which a stack of many steps is drawn."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ..runlog import Floats
from .sheet import Bools, Sheet

__all__ = ["Windows", "windows"]

_MOST: Final = 160
"""The number of windows in a chart."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The means of each line over windows of equal width; a step without a number counts as 0."""

    steps: Floats
    """The middle of each window; the first and the last are at the ends."""
    means: Floats
    lows: Floats
    highs: Floats
    """The extremes of the last line."""
    gone: Bools
    """Windows without any step that counts."""
    width: int
    """Steps in a window."""


def windows(sheet: Sheet, gone: Bools) -> Windows:
    """The windows of a sheet that has all steps; steps that are `gone` do not count.

    >>> from ..runlog import Series
    >>> from .sheet import Frame, Line
    >>> drawn = [Line("a", "t1", Series(np.arange(640), np.arange(640.0)))]
    >>> found = windows(Sheet.of(drawn, Frame(10_000, 0, 639)), np.zeros(640, bool))
    >>> found.width, found.means[0, :2].tolist(), found.highs[:2].tolist()
    (4, [1.5, 5.5], [3.0, 7.0])
    """
    count = len(sheet.steps)
    width = max(2, -(-count // _MOST))
    starts = np.arange(0, count, width)
    values, good = np.nan_to_num(sheet.values), ~gone
    counted = np.add.reduceat(good.astype(np.int64), starts)
    means = np.add.reduceat(np.where(good, values, 0.0), starts, axis=1) / np.maximum(counted, 1)
    last = sheet.values[-1]
    lows = np.minimum.reduceat(np.where(good & ~np.isnan(last), last, np.inf), starts)
    highs = np.maximum.reduceat(np.where(good & ~np.isnan(last), last, -np.inf), starts)
    ends = np.append(starts[1:], count) - 1
    steps = (sheet.steps[starts] + sheet.steps[ends]) / 2
    steps[0], steps[-1] = sheet.steps[0], sheet.steps[-1]
    return Windows(steps, means, lows, highs, counted == 0, width)
