"""A chart: the drawing, its ticks, legend and marks, and the numbers that its cursor shows."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from ..runlog import Floats
from .marks import SIGNS, Mark, Sign
from .scales import Scale, percent, seconds, shown, steps_shown
from .sheet import HEIGHT, MANY, MEDIANS, WIDTH, Frame, Sheet

__all__ = ["End", "Figure", "Size", "Unit", "figure"]

Unit: TypeAlias = Literal["", "share", "seconds"]
Size: TypeAlias = Literal["full", "half"]

_APART: Final = 7.0
"""The minimum distance between two letters at the ends of lines, in per cent of the height."""
_COLUMN: Final = 3.0
"""Letters closer than this, in per cent of the width, are stacked in one column."""
_NEAR: Final = 0.12
"""A tick closer than this to the last step, as a fraction of the axis, is dropped."""


def _short(value: float) -> str:
    return shown(value, 3)


_WORDS: Final[dict[Unit, Callable[[float], str]]] = {"": _short, "share": percent, "seconds": seconds}


@dataclass(frozen=True, slots=True)
class End:
    """A letter at the end of a line: per cent from the left and from the bottom, and its CSS class."""

    left: float
    height: float
    css: str
    letter: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, ready for the page."""

    title: str
    note: str
    size: Size
    svg: str
    stacked: bool
    legend: Sequence[tuple[str, str]]
    """The CSS class and name of each line."""
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    """Per cent from the left or from the bottom, and the label."""
    marks: Sequence[Mark]
    failures: bool
    """Whether failures are marked."""
    ends: Sequence[End]
    """Letters at the ends of lines."""
    first: int
    last: int
    """Steps."""
    data: str
    """The numbers, as JSON."""

    @property
    def label(self) -> str:
        """The label for screen readers."""
        names = ", ".join(name for _, name in self.legend)
        between = f"steps {steps_shown(self.first)} to {steps_shown(self.last)}"
        return f"{self.title}: {names}; {between}. Arrow keys move the cursor."

    @property
    def signs(self) -> list[tuple[Sign, str, str]]:
        """The legend of its signs: class, sign and meaning."""
        kinds: dict[Sign, None] = {mark.kind: None for mark in self.marks}
        if self.failures:
            kinds["failed"] = None
        return [(kind, *SIGNS[kind]) for kind in kinds]


def figure(
    title: str,
    sheet: Sheet,
    scale: Scale,
    *,
    marks: Sequence[Mark],
    failures: bool,
    stacked: bool,
    unit: Unit,
    note: str,
    size: Size,
) -> Figure:
    """The chart drawn on this sheet."""
    frame, words = sheet.frame, _WORDS[unit]
    steps = _steps(frame)
    fine = ' class="fine"' if len(sheet.steps) > MANY else ""
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true" focusable="false"'
    return Figure(
        title=title,
        note=note,
        size=size,
        svg=f"<svg{fine} {view}>{''.join(sheet.svg)}</svg>",
        stacked=stacked,
        legend=[(line.css, line.name) for line in sheet.lines],
        x_ticks=[
            # Only the first one is labelled.
            (100 * int(across) / WIDTH, steps_shown(step) if index else f"step {steps_shown(step)}")
            for index, (step, across) in enumerate(zip(steps, frame.across(steps), strict=True))
        ],
        y_ticks=[
            *([(100 * scale.position(0.0), "0")] if scale.zeros else []),
            *((100 * scale.position(tick), words(tick)) for tick in scale.ticks()),
        ],
        marks=marks,
        failures=failures,
        ends=_ends(sheet, scale),
        first=frame.left,
        last=frame.right,
        data=_data(sheet, scale, stacked, unit),
    )


def _steps(frame: Frame) -> list[int]:
    """Round steps and the last one, which replaces a round one that is too close."""
    found = {round(tick) for tick in Scale(frame.left, frame.right).ticks()}
    return [*sorted(step for step in found if step < frame.right - _NEAR * frame.span), frame.right]


def _ends(sheet: Sheet, scale: Scale) -> list[End]:
    """Letters at the ends of lines, moved apart if they would overlap; none if there are too many."""
    found: dict[float, list[End]] = {}
    if len(sheet.lines) * _APART > 100:
        return []
    for line in sheet.lines:
        good = line.series.finite
        if len(good) and line.letter:
            # At the end of the trend, if there is one: the last value may be an outlier.
            last = np.median(good.values[-(len(good) // MEDIANS or 1) :])
            height = min(100.0, max(0.0, 100 * scale.position(float(last))))
            left = 100 * int(sheet.frame.across(good.steps[-1:])[0]) / WIDTH
            # Lines that end at about the same step share a column of letters.
            column = next((known for known in found if abs(known - left) < _COLUMN), left)
            found.setdefault(column, []).append(End(left, height, line.css, line.letter))
    placed: list[End] = []
    for column in found.values():
        column.sort(key=lambda end: end.height)
        heights = _apart([end.height for end in column])
        placed += [replace(end, height=height) for end, height in zip(column, heights, strict=True)]
    return placed


def _apart(heights: Sequence[float]) -> list[float]:
    """Increasing heights, moved apart as little as possible: those that are too close are spread around their middle.

    >>> _apart([10.0, 11.0, 99.0, 100.0])
    [7.0, 14.0, 93.0, 100.0]
    """
    blocks: list[tuple[float, int]] = []
    """The middle of each block, and its number of heights."""
    for height in heights:
        blocks.append((height, 1))
        while True:
            middle, count = blocks.pop()
            half = _APART * (count - 1) / 2
            middle = max(half, min(100.0 - half, middle))
            if not blocks or middle - half >= blocks[-1][0] + _APART * (blocks[-1][1] + 1) / 2:
                blocks.append((middle, count))
                break
            before, many = blocks.pop()
            blocks.append(((before * many + middle * count) / (many + count), many + count))
    return [middle + _APART * (index - (count - 1) / 2) for middle, count in blocks for index in range(count)]


def _data(sheet: Sheet, scale: Scale, stacked: bool, unit: Unit) -> str:
    numbers: dict[str, Any] = {
        "stacked": stacked,
        "unit": unit,
        "x": [sheet.frame.left, sheet.frame.right],
        "y": [scale.low, scale.high, scale.log, scale.zeros],
        "steps": np.diff(sheet.steps, prepend=0).tolist(),
        "series": [
            {"name": line.name, "css": line.css, "letter": line.letter, "values": _column(sheet, row)}
            for row, line in enumerate(sheet.lines)
        ],
    }
    # "</script>" must not appear inside a script.
    return json.dumps(numbers, separators=(",", ":")).replace("<", "\\u003c")


def _column(sheet: Sheet, row: int) -> Any:
    """Numbers to six digits; a single number if all are the same."""
    raw, there, failed = sheet.raw[row], sheet.there[row], sheet.failed[row]
    finite = np.isfinite(raw)
    if len(raw) > 1 and bool(finite.all()) and bool((raw == raw[0]).all()):
        return _digits(raw[:1])[0]
    values: list[Any] = _digits(np.where(finite, raw, 0.0))
    for index in np.flatnonzero(~finite).tolist():
        values[index] = "failed" if failed[index] else _word(float(raw[index])) if there[index] else None
    return values


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _digits(values: Floats) -> list[float]:
    """Numbers to six digits, as short decimals."""
    sizes = np.abs(values)
    if not bool(((sizes == 0) | ((sizes > 1e-15) & (sizes < 1e15))).all()):
        return [float(f"{value:.6g}") for value in values.tolist()]
    # Dividing or multiplying by an exact power of ten gives the nearest decimal.
    power = 5 - np.floor(np.log10(np.where(sizes == 0, 1.0, sizes))).astype(np.int64)
    up, down = 10.0 ** np.maximum(power, 0), 10.0 ** np.maximum(-power, 0)
    return (np.rint(values * up / down) * down / up).tolist()
