"""Stacks: series on top of each other."""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..runlog import Floats, Series
from .figure import Figure, Size, Unit, figure
from .marks import Mark, Moment, beyond, broken, failed, moments
from .paths import area, between, draw, grid, heights, pieces
from .scales import Scale, fitted, steps_shown
from .sheet import MANY, Bools, Frame, Line, Sheet
from .windows import Windows, windows

__all__ = ["folded", "stack"]

_LINES: Final = 10
"""More lines than this have colours that are hard to tell apart."""
_SMALL: Final = 0.02
"""If there are more, those with a smaller share are merged."""


def folded(drawn: Sequence[Line]) -> list[Line]:
    """The lines of a stack; if there are many, those with less than 2 % overall are merged into one."""
    if len(drawn) <= _LINES:
        return list(drawn)
    sizes = [float(np.abs(line.series.finite.values).sum()) for line in drawn]
    limit = _SMALL * sum(sizes)
    small = [line for line, size in zip(drawn, sizes, strict=True) if size < limit]
    if len(small) < 2:
        return list(drawn)
    steps = np.unique(np.concatenate([line.series.steps for line in small]))
    values = np.zeros(len(steps))
    for line in small:
        values += line.series.on(steps, missing=0.0)
    failures = sorted({step for line in small for step in line.failed} - set(steps.tolist()))
    rest = Line(f"{len(small)} others", "rest", Series(steps, values), failures)
    return [*(line for line in drawn if line not in small), rest]


def stack(
    title: str,
    drawn: Sequence[Line],
    *,
    frame: Frame,
    total: Line | None = None,
    shares: bool = False,
    marked: Sequence[Moment] = (),
    note: str = "",
    size: Size = "half",
) -> Figure:
    """Series on top of each other: positive ones upwards from zero, negative ones downwards, and their total.

    A series that has no number at a step adds nothing there. With `shares` the axis ends at 1. Where there are many
    steps the picture is of means over windows of them, with the range of the total; the cursor reads single steps.
    """
    sheet = Sheet.of([*drawn, *([] if total is None else [total])], frame)
    every = Sheet.of(sheet.lines, dataclasses.replace(frame, points=2**62))
    count = len(drawn)
    # If the total is not finite, there is nothing to stack.
    gone: Bools = np.any(every.broken if total is None else every.broken[count:], axis=0)
    many = windows(every, gone) if len(every.steps) > MANY else None
    if many is None:
        values, across, lost = every.values, every.across, gone
    else:
        values, across, lost = many.means, frame.across(many.steps), many.gone
        note = f"{note}{'; ' if note else ''}{_said(many, total)}"
    parts = np.nan_to_num(values[:count])
    up, down = np.cumsum(np.maximum(parts, 0), axis=0), np.cumsum(np.minimum(parts, 0), axis=0)
    edges = np.concatenate([up[-1:], down[-1:], values[count:]])
    scale = Scale(0.0, 1.0) if shares else fitted(_ranged(edges, many, total), zero=True)
    found = list(pieces(np.ones(len(across), bool), lost))
    for tops in (up, down):
        # The furthest first: each extends a little under the next, so that no gap shows between them.
        for row in reversed(range(count)):
            floor: Floats = tops[row - 1] if row else np.zeros(len(across))
            if np.any(tops[row] != floor):
                inner = heights(scale, floor)
                way = "".join(area(across[part], heights(scale, tops[row][part]), inner[part]) for part in found)
                sheet.svg.append(f'<path class="area {drawn[row].css}" d="{way}"/>')
    sheet.svg.append(grid(scale))
    if total is not None:
        if many is not None:
            low, high = heights(scale, many.lows), heights(scale, many.highs)
            way = "".join(between(across[part], high[part], low[part]) for part in found)
            sheet.svg.append(f'<path class="range" d="{way}"/>')
        draw(sheet, total, found, across, heights(scale, values[count]))
    ticks = failed(sheet)
    marks: list[Mark] = list(broken(sheet))
    if many is None:
        if total is not None:
            # If the sum is off the scale, show its value, not that of the highest band.
            row = values[count:]
            outer = [np.where(row > scale.high, np.nan, up[-1:]), np.where(row < scale.low, np.nan, down[-1:])]
            edges = np.concatenate([*outer, row])
        marks += beyond(every, scale, edges)
    elif total is not None:
        marks += beyond(sheet, scale, sheet.values[count:])
    marks += moments(sheet, marked)
    unit: Unit = "share" if shares else ""
    return figure(title, sheet, scale, marks=marks, failures=ticks, stacked=True, unit=unit, note=note, size=size)


def _ranged(edges: Floats, many: Windows | None, total: Line | None) -> Floats:
    """The values that the axis is fitted to."""
    if many is None or total is None:
        return edges
    return np.concatenate([edges, many.lows[None], many.highs[None]])


def _said(many: Windows, total: Line | None) -> str:
    means = f"drawn are means of {steps_shown(many.width)} steps"
    return means if total is None else f"{means}, with the range of the sum in them"
