"""Two sides measured in turns, and the table that shows them.

The machine changes speed while it measures, so a round times both sides, and results are medians over rounds of what
the sides differ by within one. Each round times the plain side twice; what it differs by from itself is the noise.
"""

import ctypes
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Row", "compare", "gradient", "keep_memory", "show", "table", "take_turns"]

torch.set_num_threads(1)

_SECONDS = {"µs": 1e-6, "ms": 1e-3}
# Short calls are timed in batches of about this many seconds.
_BATCH = 2e-3


@dataclass(frozen=True)
class Row:
    """One comparison: what every round measured, and at most what ours may cost."""

    case: str
    unit: str
    plain: Sequence[float]
    ours: Sequence[float]
    again: Sequence[float]
    most_ratio: float | None = None
    most_more: float | None = None

    @property
    def ratio(self) -> float:
        return _ratio(self.ours, self.plain)

    @property
    def more(self) -> float:
        return _difference(self.ours, self.plain)

    @property
    def over(self) -> bool:
        if self.most_ratio is not None and self.ratio > self.most_ratio:
            return True
        return self.most_more is not None and self.more > self.most_more

    @property
    def result(self) -> str:
        return f"{self.ratio:.2f} times, {self.more:+.1f} {self.unit}"

    @property
    def limit(self) -> str:
        limits = [f"at most {self.most_ratio:.2f} times"] if self.most_ratio is not None else []
        if self.most_more is not None:
            limits.append(f"at most {self.most_more:+.1f} {self.unit}")
        return ", ".join(limits) or "none"

    def cells(self) -> list[str]:
        return [
            self.case,
            f"{statistics.median(self.plain):.1f} {self.unit}",
            f"{statistics.median(self.ours):.1f} {self.unit}",
            f"{self.ratio:.2f}",
            f"{self.more:+.1f}",
            f"{_ratio(self.again, self.plain):.2f} {_difference(self.again, self.plain):+.1f}",
            self.limit,
            "" if self.limit == "none" else "over" if self.over else "ok",
        ]


def compare(
    case: str,
    plain: Callable[[], object],
    ours: Callable[[], object],
    *,
    seconds: float,
    unit: str = "µs",
    most_ratio: float | None = None,
    most_more: float | None = None,
) -> Row:
    """Time two sides for about that many seconds."""
    samples = take_turns([plain, ours, plain], seconds)
    in_unit = [[sample / _SECONDS[unit] for sample in side] for side in samples]
    return Row(case, unit, *in_unit, most_ratio=most_ratio, most_more=most_more)


def take_turns(sides: Sequence[Callable[[], object]], seconds: float) -> list[list[float]]:
    """Seconds per call of every side in every round."""
    once = [min(_time(side, 1) for _ in range(2)) for side in sides]
    calls = max(1, round(_BATCH / min(once)))
    pairs = max(2, round(seconds / (2 * calls * sum(once))))
    samples: list[list[float]] = [[] for _ in sides]
    turns = list(zip(sides, samples, strict=True))
    gc.collect()
    gc.disable()
    try:
        for _ in range(pairs):
            # There and back, so that no side always follows the same other.
            for side, taken in (*turns, *reversed(turns)):
                taken.append(_time(side, calls))
    finally:
        gc.enable()
    return samples


def keep_memory() -> None:
    """Let no freed memory go back to the system, from now on.

    By default glibc returns megabytes at a whim, and faulting them in again takes up to three times as long as the
    work: two equal sides at 1e6 elements then differ by 15 %, and by 2 % when memory is kept.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: never
        mallopt(-4, 0)  # M_MMAP_MAX: no mappings


def gradient(fn: Callable[..., Any], *leaves: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
    """One forward and backward pass of a function of these tensors."""
    return lambda: torch.autograd.grad(fn(*leaves), leaves)


def show(rows: Sequence[Row]) -> None:
    """Print rows as a table."""
    if rows:
        header = ["case", "plain", "penalties", "ratio", "more", "noise", "limit", ""]
        table(header, [row.cells() for row in rows])


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print cells in columns, the first to the left."""
    widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]
    for line in (header, *lines):
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip(), flush=True)


def _time(side: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in itertools.repeat(None, calls):
        side()
    return (time.perf_counter() - start) / calls


def _ratio(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def _difference(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.median(x - y for x, y in zip(a, b, strict=True))
