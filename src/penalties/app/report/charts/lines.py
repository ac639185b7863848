"""Charts as inline SVG: lines over steps.

A picture stretches to any width, so it holds shapes alone: no text, and strokes that do not scale. Numbers on the axes
and signs stand beside it, placed in per cent. Each chart carries the numbers it shows, which the page's script reads
for its cursor.
"""

from collections.abc import Sequence

import numpy as np

from .figure import Figure, Size, Unit, figure
from .marks import beyond, broken, failed
from .paths import draw, grid, heights, moves, pieces
from .scales import Scale, fitted, steps_shown
from .sheet import MANY, MEDIANS, Frame, Line, Sheet

__all__ = ["lines"]


def lines(
    title: str,
    drawn: Sequence[Line],
    *,
    frame: Frame,
    log: bool = False,
    zero: bool = False,
    unit: Unit = "",
    note: str = "",
    size: Size = "half",
) -> Figure:
    """A line per series, on one axis. With `log`, zeros lie in a separate strip at the bottom.

    Where there are many steps, every line is faint under its trend: medians, so that noise hides nothing.
    """
    sheet = Sheet.of(drawn, frame)
    scale = fitted(sheet.values, log=log, zero=zero)
    sheet.svg.append(grid(scale))
    for row, line in enumerate(drawn):
        parts = list(pieces(sheet.there[row], sheet.broken[row]))
        draw(sheet, line, parts, sheet.across, heights(scale, sheet.values[row]), _trend(sheet, line, scale))
    ticks = failed(sheet)
    inside = np.where(sheet.values > 0, sheet.values, np.nan) if scale.log else sheet.values
    marks = [*broken(sheet), *beyond(sheet, scale, inside)]
    longest = max((len(line.series) for line in drawn), default=0)
    if len(sheet.steps) > MANY:
        note = f"{note}{'; ' if note else ''}thick lines are medians of {steps_shown(_window(longest))} steps"
    return figure(title, sheet, scale, marks=marks, failures=ticks, stacked=False, unit=unit, note=note, size=size)


def _window(count: int) -> int:
    """The window of the medians."""
    return -(-count // MEDIANS)


def _trend(sheet: Sheet, line: Line, scale: Scale) -> str:
    """A line through the medians of a series; empty if few steps are drawn."""
    numbers = line.series.finite
    if len(sheet.steps) <= MANY or len(numbers) <= MEDIANS:
        return ""
    window = _window(len(numbers))
    whole = len(numbers) - len(numbers) % window
    steps = np.median(numbers.steps[:whole].reshape(-1, window), axis=1)
    values = np.median(numbers.values[:whole].reshape(-1, window), axis=1)
    across, down = sheet.frame.across(steps), heights(scale, values)
    # The line breaks at steps without data.
    apart = np.diff(steps)
    cuts = np.flatnonzero(apart > 3 * np.median(apart)) + 1
    found = zip(np.split(across, cuts), np.split(down, cuts), strict=True)
    return "".join(f"M{x[0]} {y[0]}{moves(x, y)}" for x, y in found)
