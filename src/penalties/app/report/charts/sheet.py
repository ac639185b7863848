"""The data of a chart: series aligned on the steps that are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..runlog import EMPTY, Floats, Ints, Series
from .downsample import keep

__all__ = ["HEIGHT", "MANY", "MEDIANS", "WIDTH", "Bools", "Frame", "Line", "Sheet"]

WIDTH: Final = 2000
HEIGHT: Final = 1000
"""The size of a chart in coordinates."""

MANY: Final = 300
"""Lines with more points than this are thinner, and have a trend."""
MEDIANS: Final = 80
"""Points of a trend."""

Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a chart."""

    name: str
    css: str
    series: Series
    failed: Sequence[int] = ()
    """Steps at which a number is missing because the term failed."""
    letter: str = ""
    """The letter at its end."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The steps that a chart spans, and the number of points that it may draw."""

    points: int
    left: int
    right: int

    @classmethod
    def around(cls, steps: Sequence[Ints], points: int) -> "Frame":
        """A frame that spans all of these steps."""
        there = [part for part in steps if len(part)]
        left = min((int(part[0]) for part in there), default=0)
        return cls(points, left, max((int(part[-1]) for part in there), default=0))

    @property
    def span(self) -> int:
        """The distance from the first step to the last; 1 for a single step."""
        return max(1, self.right - self.left)

    def across(self, steps: Sequence[int] | Ints | Floats) -> Ints:
        """Coordinates from the left; a single step is in the middle."""
        indices = np.asarray(steps, np.float64) - self.left
        return np.rint(WIDTH * (indices / self.span if self.right > self.left else indices + 0.5)).astype(np.int64)


@dataclass(slots=True)
class Sheet:
    """Aligned series: every array has a row per line, and a column per step that is drawn."""

    lines: Sequence[Line]
    frame: Frame
    steps: Ints
    raw: Floats
    """The values, with NaN and infinity as in the log."""
    there: Bools
    """Where a line has a number, NaN, infinity or a failure."""
    failed: Bools
    wrong: Ints
    """All steps at which a number is NaN or infinite, drawn or not."""
    svg: list[str] = field(default_factory=list[str])
    """The pieces of SVG."""

    @classmethod
    def of(cls, lines: Sequence[Line], frame: Frame) -> "Sheet":
        """A sheet of as many steps as the frame allows, with every extreme of every line."""
        failures = [np.array(line.failed, np.int64) for line in lines]
        steps = _union([*failures, *(line.series.steps for line in lines)])
        shape = (len(lines), len(steps))
        raw, there, failed = np.full(shape, np.nan), np.zeros(shape, bool), np.zeros(shape, bool)
        for row, line in enumerate(lines):
            indices = np.searchsorted(steps, line.series.steps)
            raw[row, indices] = line.series.values
            there[row, indices] = True
            failed[row, np.searchsorted(steps, failures[row])] = True
        failed &= ~there
        wrong = steps[(there & ~np.isfinite(raw)).any(axis=0)]
        there |= failed
        kept = keep(raw, there & ~np.isfinite(raw), frame.points)
        return cls(lines, frame, steps[kept], raw[:, kept], there[:, kept], failed[:, kept], wrong)

    @property
    def values(self) -> Floats:
        """The finite numbers, and NaN elsewhere."""
        return np.where(np.isfinite(self.raw), self.raw, np.nan)

    @property
    def broken(self) -> Bools:
        """Where a line has no finite number though it should."""
        return self.there & ~np.isfinite(self.raw)

    @property
    def across(self) -> Ints:
        """The steps as coordinates."""
        return self.frame.across(self.steps)


def _union(parts: Sequence[Ints]) -> Ints:
    """All steps, in increasing order. Series usually have the same steps, and checking that is faster than sorting."""
    longest = max(parts, key=len, default=EMPTY.steps)
    rest = [part for part in parts if len(part) and not np.array_equal(part, longest)]
    return np.unique(np.concatenate([longest, *rest])) if rest else longest
