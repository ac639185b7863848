"""Charts over steps: lines, and shares on top of each other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from ..numbers import steps_shown
from ..runlog import Floats, Ints, Series
from .chart import Chart, Scale, Sign, Size, Unit, between
from .columns import Columns

__all__ = ["Line", "Look", "Moment", "lines", "shares", "spark"]

Look: TypeAlias = Literal["line", "behind", "dashed", "dots"]

_NEAR: Final = 40
"""In words, steps are listed as ranges; those closer than this part of the chart share one."""
_RANGES: Final = 4
"""Ranges that are listed."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a chart."""

    name: str
    css: str
    columns: Columns
    series: Series
    failed: Sequence[int] = ()
    """Steps at which a number is missing because the term failed."""
    letter: str = ""
    """The letter at its end."""
    look: Look = "line"
    right: bool = False
    """Whether it has the axis on the right."""
    hidden: bool = False
    """Whether it is drawn only when somebody chooses it."""
    times: float = 1.0
    """What its numbers are multiplied by."""
    smooth: bool = False
    """Whether smoothing applies to it: to what was measured in training."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened to the run after so many finished steps."""

    step: int
    what: str


def lines(
    title: str,
    drawn: Sequence[Line],
    *,
    log: bool = False,
    zero: bool = False,
    unit: Unit = "",
    moments: Sequence[Moment] = (),
    note: str = "",
    size: Size = "half",
) -> Chart:
    """A line per series. With `log` the axis is one at first, if there is a number above zero."""
    columns = [line.columns.column(line.series, line.failed) for line in drawn]
    return _chart(title, "lines", drawn, columns, _scales(drawn, log), zero, unit, moments, note, size)


def shares(title: str, drawn: Sequence[Line], *, note: str = "", size: Size = "half") -> Chart:
    """The share of each series in the sum of their magnitudes, on top of each other; all are of one run.

    The script computes shares of those that are shown.
    """
    columns = drawn[0].columns.together([line.series for line in drawn])
    return _chart(title, "shares", drawn, columns, ["linear"], True, "share", (), note, size)


def spark(title: str, line: Line, *, low: float | None = None, high: float | None = None) -> Chart:
    """A small line without axes, from `low` to `high` if they are given."""
    column = line.columns.column(line.series, small=True)
    chart = _chart(title, "lines", [line], [column], ["linear"], False, "", (), "", "spark")
    return Chart(title, {**chart.spec, "low": low, "high": high}, chart.label, size="spark", ends=chart.ends)


def _chart(
    title: str,
    kind: str,
    drawn: Sequence[Line],
    columns: Sequence[int],
    scales: Sequence[Scale],
    zero: bool,
    unit: Unit,
    moments: Sequence[Moment],
    note: str,
    size: Size,
) -> Chart:
    spec: dict[str, Any] = {
        "kind": kind,
        "unit": unit,
        "scales": scales,
        "zero": zero,
        "lines": [
            {
                "name": line.name,
                "css": line.css,
                "letter": line.letter,
                "run": line.columns.letter,
                "column": column,
                "look": line.look,
                "right": line.right,
                "hidden": line.hidden,
                "smooth": line.smooth,
                "times": line.times,
            }
            for line, column in zip(drawn, columns, strict=True)
        ],
        "moments": [[moment.step, moment.what] for moment in moments],
    }
    every = [line.series.steps for line in drawn if len(line.series)]
    first = min((int(steps[0]) for steps in every), default=0)
    last = max((int(steps[-1]) for steps in every), default=0)
    names = ", ".join(line.name for line in drawn)
    label = f"{title}: {names}; {between(first, last)}. Arrow keys move the cursor."
    legend = [(line.name, f"{line.css} {line.look}", not line.hidden, line.letter) for line in drawn]
    return Chart(title, spec, label, note, size, legend, list(_signs(drawn, moments, last - first)), (first, last))


def _scales(drawn: Sequence[Line], log: bool) -> list[Scale]:
    """The scales that a chart may have, the first one at first: log for what is above 0, asinh for what is not."""
    values = [line.series.finite.values for line in drawn]
    positive = any(bool(np.any(one > 0)) for one in values)
    other = any(bool(np.any(one <= 0)) for one in values)
    found: list[Scale] = ["linear"]
    if positive:
        found.insert(0 if log else 1, "log")
    return [*found, "asinh"] if other else found


def _signs(drawn: Sequence[Line], moments: Sequence[Moment], span: int) -> Iterable[tuple[Sign, str]]:
    """What the marks in a chart mean, with the steps."""
    drawn = [line for line in drawn if not line.right and not line.hidden]
    for line in drawn:
        broken = line.series.steps[~np.isfinite(line.series.values)]
        if len(broken):
            of = f"{line.letter or line.name} " if len(drawn) > 1 else ""
            yield "broken", f"{of}NaN or infinite: {_ranges(broken, span)}"
    for line in drawn:
        if line.failed:
            yield "failed", f"{line.name} failed: {_ranges(np.array(line.failed), span)}"
    for moment in moments:
        when = f"after step {steps_shown(moment.step)}" if moment.step > 0 else "before step 1"
        yield "moment", f"{moment.what} {when}"


def _ranges(steps: Ints, span: int) -> str:
    """Steps in words, those that are close to each other as a range."""
    cuts = np.flatnonzero(np.diff(steps) > max(1, span / _NEAR))
    firsts: Floats | Ints = steps[np.append(0, cuts + 1)]
    lasts = steps[np.append(cuts, len(steps) - 1)]
    parts = [
        steps_shown(first) if first == last else f"{steps_shown(first)} to {steps_shown(last)}"
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    ]
    more = f" and {steps_shown(len(parts) - _RANGES)} more times" if len(parts) > _RANGES else ""
    word = "step" if len(steps) == 1 else "steps"
    return f"{word} {', '.join(parts[:_RANGES])}{more}"
