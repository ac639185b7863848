"""The numbers of one run that its charts and those of a comparison draw: each series once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..runlog import EMPTY, Floats, Ints, RunLog, Series
from .chart import as_json
from .thinning import BUCKETS, keep, means

__all__ = ["Columns", "buckets_for"]

_FEW: Final = 40
"""Buckets of a small line without axes."""
_EXACT: Final = 50_000
"""A page with no more numbers than this has all digits of each."""
_NUMBERS: Final = 280_000
"""About how many numbers a page may hold: each takes about ten bytes, and a page should stay below 4 MB."""
_MOST: Final = 1e300
_LEAST: Final = 50
"""Buckets of a series where many have to share a page."""


@dataclass(slots=True)
class _Group:
    """Series that keep the same steps."""

    series: Sequence[Series]
    failed: Sequence[int]
    small: bool


@dataclass(slots=True, eq=False)
class Columns:
    """The series of a run, named by their numbers, in the order in which they are requested.

    Thinning waits until all are known: how much stays of each depends on how many there are.
    """

    letter: str
    run: RunLog
    _groups: list[_Group] = field(default_factory=list[_Group])
    _known: dict[tuple[int, int, bool], int] = field(default_factory=dict[tuple[int, int, bool], int])
    _count: int = 0

    def column(self, series: Series, failed: Sequence[int] = (), *, small: bool = False) -> int:
        """The number of a series; `failed` are steps at which it has none because its term failed."""
        key = _key(series, failed, small)
        return self._known[key] if key in self._known else self.together([series], failed, small=small)[0]

    def together(self, series: Sequence[Series], failed: Sequence[int] = (), *, small: bool = False) -> list[int]:
        """The numbers of several series which keep the same steps, so that they can be stacked."""
        self._groups.append(_Group(series, failed, small))
        first, self._count = self._count, self._count + len(series)
        found = list(range(first, self._count))
        self._known |= {_key(one, failed, small): number for one, number in zip(series, found, strict=True)}
        return found

    def over(self, axis: str) -> bool:
        """Whether charts may be over tokens or seconds."""
        return axis in _axes(self.run)

    def numbers(self, buckets: int) -> int:
        """How many numbers there are, about, with this many buckets."""
        return sum(
            len(group.series) * min(max(map(len, group.series), default=0), 4 * (_FEW if group.small else buckets))
            for group in self._groups
        )

    def data(self, buckets: int, *, exact: bool) -> str:
        """All of it as JSON for the page's script."""
        steps: dict[bytes, int] = {}
        listed: list[list[int]] = []

        def index(of: Ints) -> int:
            key = of.tobytes()
            if key not in steps:
                steps[key] = len(listed)
                listed.append(np.diff(of, prepend=0).tolist())
            return steps[key]

        columns: list[list[Any]] = []
        for group in self._groups:
            columns += _thinned(group, _FEW if group.small else buckets, index, exact)
        axes = _axes(self.run)
        return as_json({"letter": self.letter, "steps": listed, "columns": columns, "axes": axes})


def _key(series: Series, failed: Sequence[int], small: bool) -> tuple[int, int, bool]:
    # A group refers to its series, so that no other object gets the same id.
    return id(series.values), len(failed), small


def buckets_for(columns: Sequence[Columns]) -> tuple[int, bool]:
    """Into how many buckets series are divided so that the page stays small; and whether numbers have all digits."""
    low, high = _LEAST, BUCKETS
    while low < high:
        middle = (low + high + 1) // 2
        if sum(one.numbers(middle) for one in columns) <= _NUMBERS:
            low = middle
        else:
            high = middle - 1
    return low, sum(one.numbers(low) for one in columns) <= _EXACT


def _thinned(group: _Group, buckets: int, index: Any, exact: bool) -> list[list[Any]]:
    """The columns of a group: which steps, the numbers, and where it is thinned which steps and means of buckets."""
    steps, rows, there, failed = _aligned(group)
    # Together they keep the extremes of each: of fewer buckets, so that each keeps about as many numbers as alone.
    buckets = max(1, 3 * buckets // (2 * len(rows) + 1))
    kept = keep(rows, (there & ~np.isfinite(rows)) | failed, buckets)
    at = index(steps[kept])
    found: list[list[Any]] = []
    for row in range(len(rows)):
        column = [at, _numbers(rows[row, kept], there[row, kept], failed[kept], exact)]
        if len(kept) < len(steps):
            last, mean = means(rows[row], buckets)
            column += [index(steps[last]), _numbers(mean, np.isfinite(mean), np.zeros(len(mean), bool), exact)]
        found.append(column)
    return found


def _aligned(group: _Group) -> tuple[Ints, Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """All steps of a group, its numbers with NaN where there is none, where there is one, and where its term failed."""
    parts = [one.steps for one in group.series]
    longest = max(parts, key=len, default=EMPTY.steps)
    rest = [part for part in parts if not np.array_equal(part, longest)]
    gone = np.array(sorted(group.failed), np.int64)
    steps = np.unique(np.concatenate([longest, *rest, gone])) if rest or len(gone) else longest
    rows = np.full((len(parts), len(steps)), np.nan)
    there = np.zeros(rows.shape, bool)
    for row, one in enumerate(group.series):
        at = np.searchsorted(steps, one.steps)
        rows[row, at] = one.values
        there[row, at] = True
    return steps, rows, there, np.isin(steps, gone) & ~there.any(axis=0)


def _numbers(values: Floats, there: NDArray[np.bool_], failed: NDArray[np.bool_], exact: bool) -> Any:
    """Numbers, to six digits unless they are to be exact; a single number if all are the same."""
    finite = np.isfinite(values)
    if len(values) > 1 and bool(finite.all()) and bool((values == values[0]).all()):
        return float(values[0]) if exact else _digits(values[:1])[0]
    plain = np.where(finite, values, 0.0)
    found: list[Any] = plain.tolist() if exact else _digits(plain)
    for at in np.flatnonzero(~finite).tolist():
        number = float(values[at])
        word = "NaN" if np.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        found[at] = "failed" if failed[at] else word if there[at] else None
    return found


def _digits(values: Floats) -> list[float]:
    """Numbers to six digits, as short decimals."""
    sizes = np.abs(values)
    if not bool(((sizes == 0) | ((sizes > 1e-15) & (sizes < 1e15))).all()):
        return [float(f"{value:.6g}") for value in values.tolist()]
    # Dividing or multiplying by an exact power of ten gives the nearest decimal.
    power = 5 - np.floor(np.log10(np.where(sizes == 0, 1.0, sizes))).astype(np.int64)
    up, down = 10.0 ** np.maximum(power, 0), 10.0 ** np.maximum(-power, 0)
    return (np.rint(values * up / down) * down / up).tolist()


def _axes(run: RunLog) -> Mapping[str, list[float]]:
    """The tokens and the seconds up to some steps, between which the script interpolates: what charts may be over."""
    evaluations = run.evaluations.total.steps
    every = [part for part in (run.steps, evaluations) if len(part)]
    if not every:
        return {"step": [0]}
    first, last = (int(edge(part[end] for part in every)) for edge, end in ((min, 0), (max, -1)))
    known = {"tokens": run.tokens.finite, "seconds": run.seconds.finite}
    known = {name: series for name, series in known.items() if len(series) and bool(np.any(series.values > 0))}
    if not known:
        return {"step": [first, last]}
    steps = run.steps
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), BUCKETS)).round().astype(np.int64))
    start = min(first, int(steps[0]) - 1)
    axes: dict[str, list[float]] = {"step": [start, *steps[chosen].tolist(), *([last] if last > steps[-1] else [])]}
    for name, series in known.items():
        # Numbers that somebody else wrote may be too large to add up.
        sums = np.minimum(np.cumsum(np.clip(series.values, 0.0, _MOST)), _MOST)
        before = np.searchsorted(series.steps, steps[chosen], side="right")
        found = _digits(np.append(0.0, sums)[before])
        axes[name] = [0.0, *found, *(found[-1:] if last > steps[-1] else [])]
    return axes
