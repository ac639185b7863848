"""Paths: lines, areas and a grid, in the coordinates of a chart."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ..runlog import Floats, Ints
from .scales import Scale
from .sheet import HEIGHT, WIDTH, Bools, Line, Sheet

__all__ = ["area", "between", "draw", "grid", "heights", "moves", "pieces"]

_DOTS: Final = 24
"""A line of at most this many points has a dot at each."""
_UNDER: Final = 2
"""How far an area extends under its neighbour, in coordinates."""


def heights(scale: Scale, values: Floats) -> Ints:
    """Coordinates from the top; values far off the scale are clipped to just outside the chart."""
    indices = np.clip(np.nan_to_num(scale.positions(values)), -0.5, 1.5)
    return np.rint(HEIGHT * (1 - indices)).astype(np.int64)


def pieces(there: Bools, gone: Bools) -> Iterator[Ints]:
    """The indices of a line between its breaks; steps without data are skipped."""
    indices = np.flatnonzero(there)
    good = ~gone[indices]
    cuts = np.flatnonzero(np.diff(good.astype(np.int8))) + 1
    for piece, whole in zip(np.split(indices, cuts), np.split(good, cuts), strict=True):
        if len(piece) and whole[0]:
            yield piece


def draw(sheet: Sheet, line: Line, parts: Sequence[Ints], across: Ints, down: Ints, trend: str = "") -> None:
    """A line in pieces, with dots if it is short, and for a piece of a single step."""
    few = sum(map(len, parts)) <= _DOTS
    way = "".join(f"M{across[piece[0]]} {down[piece[0]]}{moves(across[piece], down[piece])}" for piece in parts)
    alone = [index for piece in parts if few or len(piece) == 1 for index in piece]
    dots = "".join(f"M{across[index]} {down[index]}h0" for index in alone)
    paths = {"": way, "dots": dots, "trend": trend}
    drawn = "".join(f'<path class="{css}" d="{path}"/>' for css, path in paths.items() if path)
    noisy = " noisy" if trend else ""
    sheet.svg.append(f'<g class="line{noisy} {line.css}">{drawn}</g>'.replace(' class=""', ""))


def moves(across: Ints, down: Ints) -> str:
    """The relative moves from each point to the next; a horizontal stretch is one move."""
    if len(across) == 1:
        return "h0"
    inner = (down[1:-1] != down[:-2]) | (down[1:-1] != down[2:])
    kept = np.concatenate([[True], inner, [True]])
    steps = zip(np.diff(across[kept]).tolist(), np.diff(down[kept]).tolist(), strict=True)
    return "l" + " ".join(f"{dx} {dy}" for dx, dy in steps)


def area(across: Ints, outer: Ints, inner: Ints) -> str:
    """The area between an edge and the one before it, extended a little below that."""
    way = int(np.sign((inner - outer).sum()))
    return between(across, outer, inner + way * _UNDER)


def between(across: Ints, first: Ints, second: Ints) -> str:
    """The area between two lines."""
    if len(across) == 1:
        # A single step is drawn as a bar.
        half = WIDTH // 50
        across, first, second = np.array([across[0] - half, across[0] + half]), first.repeat(2), second.repeat(2)
    back = moves(across[::-1], second[::-1])
    return f"M{across[0]} {second[0]}V{first[0]}{moves(across, first)}V{second[-1]}{back}Z"


def grid(scale: Scale) -> str:
    """Horizontal lines at the ticks."""
    levels = heights(scale, np.array(scale.ticks())).tolist()
    way = "".join(f"M0 {level}h{WIDTH}" for level in levels)
    zero = ""
    if scale.zeros:
        zero = f'<path class="moment" d="M0 {round(HEIGHT * (1 - scale.zeros))}h{WIDTH}"/>'
    elif not scale.log and scale.low < 0 < scale.high:
        zero = f'<path class="zero" d="M0 {int(heights(scale, np.array([0.0]))[0])}h{WIDTH}"/>'
    return f'<path class="grid" d="{way}"/>{zero}'
