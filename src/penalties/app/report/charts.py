"""Charts as inline SVG: lines and stacks over steps.

A picture stretches to any width, so it holds shapes alone: no text, and strokes that do not scale. Numbers on the axes
and signs stand beside it, placed in per cent. Each chart carries the numbers it shows, which the page's script reads
for its cursor.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from .figure import Figure, Size, Unit, figure
from .marks import Moment, beyond, broken, failed, moments
from .runlog import Floats, Ints
from .scales import Scale, fitted, steps_shown
from .sheet import HEIGHT, MANY, MEDIANS, WIDTH, Bools, Frame, Line, Sheet

__all__ = ["lines", "stack"]

_DOTS: Final = 24
"""A line of no more points than this has a dot at each."""


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
    """A line for each series, on one axis. With `log`, what is not above zero lies at its lower edge.

    Where there are many steps, every line is faint under its trend: medians, so that noise hides nothing.
    """
    sheet = Sheet.of(drawn, frame)
    scale = fitted(sheet.values, log=log, zero=zero)
    values = np.where(sheet.values <= 0, scale.low, sheet.values) if log else sheet.values
    sheet.svg.append(_grid(scale))
    for row, line in enumerate(drawn):
        pieces = list(_pieces(sheet.there[row], sheet.broken[row]))
        _draw(sheet, line, pieces, _down(scale, values[row]), _trend(sheet, line, scale))
    ticks = failed(sheet)
    marks = [*broken(sheet), *beyond(sheet, scale, values)]
    longest = max((len(line.series) for line in drawn), default=0)
    if len(sheet.steps) > MANY:
        note = f"{note}{'; ' if note else ''}thick lines are medians of {steps_shown(_window(longest))} steps"
    return figure(title, sheet, scale, marks=marks, failures=ticks, stacked=False, unit=unit, note=note, size=size)


def stack(
    title: str,
    drawn: Sequence[Line],
    *,
    frame: Frame,
    total: Line | None = None,
    shares: bool = False,
    told: Sequence[Moment] = (),
    note: str = "",
    size: Size = "half",
) -> Figure:
    """Series on top of each other: positive ones upwards from zero, negative ones downwards, and their total.

    A series that has no number at a step adds nothing there. With `shares` the axis ends at 1.
    """
    sheet = Sheet.of([*drawn, *([] if total is None else [total])], frame)
    count = len(drawn)
    parts = np.nan_to_num(sheet.values[:count])
    up, down = np.cumsum(np.maximum(parts, 0), axis=0), np.cumsum(np.minimum(parts, 0), axis=0)
    edges = np.concatenate([up[-1:], down[-1:], sheet.values[count:]])
    scale = Scale(0.0, 1.0) if shares else fitted(edges, zero=True)
    # Where the total is not finite there is nothing to stack.
    gone: Bools = np.any(sheet.broken if total is None else sheet.broken[count:], axis=0)
    pieces = list(_pieces(np.ones(len(sheet.steps), bool), gone))
    for tops in (up, down):
        # The furthest first: each covers what of the one behind is not its own.
        for row in reversed(range(count)):
            if np.any(tops[row] != (tops[row - 1] if row else 0.0)):
                way = "".join(_area(sheet.across[piece], _down(scale, tops[row][piece]), scale) for piece in pieces)
                sheet.svg.append(f'<path class="area {drawn[row].css}" d="{way}"/>')
    sheet.svg.append(_grid(scale))
    if total is not None:
        _draw(sheet, total, pieces, _down(scale, sheet.values[count]))
    ticks = failed(sheet)
    marks = [*broken(sheet), *beyond(sheet, scale, edges), *moments(sheet, told)]
    unit: Unit = "share" if shares else ""
    return figure(title, sheet, scale, marks=marks, failures=ticks, stacked=True, unit=unit, note=note, size=size)


def _down(scale: Scale, values: Floats) -> Ints:
    """Coordinates from above; what is far off the scale lies only a little off the picture."""
    places = np.clip(np.nan_to_num(scale.places(values)), -0.5, 1.5)
    return np.rint(HEIGHT * (1 - places)).astype(np.int64)


def _pieces(there: Bools, gone: Bools) -> Iterator[Ints]:
    """The places of a line between its breaks; steps at which it has nothing are passed over."""
    places = np.flatnonzero(there)
    good = ~gone[places]
    cuts = np.flatnonzero(np.diff(good.astype(np.int8))) + 1
    for piece, whole in zip(np.split(places, cuts), np.split(good, cuts), strict=True):
        if len(piece) and whole[0]:
            yield piece


def _window(count: int) -> int:
    """How many numbers a median is of."""
    return -(-count // MEDIANS)


def _trend(sheet: Sheet, line: Line, scale: Scale) -> str:
    """A line through the medians of a series; none where few steps are drawn."""
    numbers = line.series.finite
    if len(sheet.steps) <= MANY or len(numbers) <= MEDIANS:
        return ""
    window = _window(len(numbers))
    whole = len(numbers) - len(numbers) % window
    steps = np.median(numbers.steps[:whole].reshape(-1, window), axis=1)
    values = np.median(numbers.values[:whole].reshape(-1, window), axis=1)
    across, down = sheet.frame.across(steps), _down(scale, np.maximum(values, scale.low) if scale.log else values)
    # A line is not drawn over steps at which there is nothing.
    apart = np.diff(steps)
    cuts = np.flatnonzero(apart > 3 * np.median(apart)) + 1
    pieces = zip(np.split(across, cuts), np.split(down, cuts), strict=True)
    return "".join(f"M{x[0]} {y[0]}{_moves(x, y)}" for x, y in pieces)


def _draw(sheet: Sheet, line: Line, pieces: Sequence[Ints], down: Ints, trend: str = "") -> None:
    """A line in pieces, with dots where it is short or a piece is a single step."""
    across = sheet.across
    few = sum(map(len, pieces)) <= _DOTS
    way = "".join(f"M{across[piece[0]]} {down[piece[0]]}{_moves(across[piece], down[piece])}" for piece in pieces)
    alone = [place for piece in pieces if few or len(piece) == 1 for place in piece]
    dots = "".join(f"M{across[place]} {down[place]}h0" for place in alone)
    paths = {"": way, "dots": dots, "trend": trend}
    drawn = "".join(f'<path class="{css}" d="{path}"/>' for css, path in paths.items() if path)
    noisy = " noisy" if trend else ""
    sheet.svg.append(f'<g class="line{noisy} {line.css}">{drawn}</g>'.replace(' class=""', ""))


def _moves(across: Ints, down: Ints) -> str:
    """The relative moves from each point to the next; a level stretch is one move."""
    if len(across) == 1:
        return "h0"
    inner = (down[1:-1] != down[:-2]) | (down[1:-1] != down[2:])
    kept = np.concatenate([[True], inner, [True]])
    moves = zip(np.diff(across[kept]).tolist(), np.diff(down[kept]).tolist(), strict=True)
    return "l" + " ".join(f"{dx} {dy}" for dx, dy in moves)


def _area(across: Ints, down: Ints, scale: Scale) -> str:
    """What lies between a line and zero."""
    if len(across) == 1:
        # One step alone is a bar.
        half = WIDTH // 50
        across, down = np.array([across[0] - half, across[0] + half]), np.array([down[0], down[0]])
    floor = int(_down(scale, np.array([0.0]))[0])
    return f"M{across[0]} {floor}V{down[0]}{_moves(across, down)}V{floor}Z"


def _grid(scale: Scale) -> str:
    levels = _down(scale, np.array(scale.ticks())).tolist()
    grid = "".join(f"M0 {level}h{WIDTH}" for level in levels)
    zero = ""
    if not scale.log and scale.low < 0 < scale.high:
        zero = f'<path class="zero" d="M0 {int(_down(scale, np.array([0.0]))[0])}h{WIDTH}"/>'
    return f'<path class="grid" d="{grid}"/>{zero}'
