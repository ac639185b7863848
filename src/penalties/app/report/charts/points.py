"""Charts without steps: numbers by name with their intervals, and one quantity against another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..numbers import shown
from .chart import Chart, Scale, Size

__all__ = ["Dots", "Spot", "dots", "scatter"]


@dataclass(frozen=True, slots=True)
class Dots:
    """One row of a dot plot: a number for each seed, and an interval."""

    name: str
    css: str
    values: Sequence[float]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    """The interval; None where there is none."""
    labels: Sequence[str] = ()
    """What each number is of, such as a seed."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One point of a scatter chart."""

    name: str
    css: str
    x: float
    y: float
    front: bool = False
    """Whether it lies on the front, which is drawn as a line."""


def dots(title: str, rows: Sequence[Dots], *, x_name: str, note: str = "", size: Size = "full") -> Chart:
    """A row for each name: a dot for each number, the mean as a bar, the interval as a line; with a line at 0.

    Numbers that are not finite are left out.
    """
    spec: dict[str, Any] = {"kind": "dots", "x": x_name, "rows": [_drawn(row) for row in rows]}
    said = "; ".join(_row(row) for row in rows)
    count = sum(len(row["values"]) for row in spec["rows"])
    return Chart(title, spec, f"{title}: {x_name} of {said}", note, size, points=count)


def scatter(
    title: str,
    spots: Sequence[Spot],
    *,
    x_name: str,
    y_name: str,
    x_scale: Scale = "linear",
    joined: bool = False,
    note: str = "",
    size: Size = "half",
) -> Chart:
    """One quantity against another; points on the front are joined by steps, and with `joined` all by a line.

    Points that are not finite are left out, and on a log axis those at which x is not above 0.
    """
    there = [spot for spot in spots if math.isfinite(spot.x) and math.isfinite(spot.y)]
    inside = [spot for spot in there if spot.x > 0 or x_scale != "log"]
    spec = {
        "kind": "scatter",
        "x": x_name,
        "y": y_name,
        "scale": x_scale,
        "joined": joined,
        "spots": [{"name": one.name, "css": one.css, "x": one.x, "y": one.y, "front": one.front} for one in inside],
    }
    said = "; ".join(f"{one.name}: {x_name} {shown(one.x)}, {y_name} {shown(one.y)}" for one in inside)
    return Chart(title, spec, f"{title}: {said}", note, size, points=len(inside))


def _drawn(row: Dots) -> dict[str, Any]:
    inside = [place for place, value in enumerate(row.values) if math.isfinite(value)]
    return {
        "name": row.name,
        "css": row.css,
        "values": [row.values[place] for place in inside],
        "labels": [row.labels[place] for place in inside] if row.labels else [],
        "mean": _finite(row.mean),
        "low": _finite(row.low),
        "high": _finite(row.high),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _row(row: Dots) -> str:
    if row.low is not None and row.high is not None:
        return f"{row.name} {shown(row.low)} to {shown(row.high)}"
    return f"{row.name} {', '.join(shown(value) for value in row.values)}"
