"""Two sides measured in turns, and the table that shows them.

The machine changes speed while it measures, so a round times both sides, and results are medians over rounds of what
the sides differ by within one. Each round times the plain side twice; what it differs by from itself is the noise.
"""

import ctypes
import gc
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["Row", "compare", "gradient", "keep_memory", "peak", "show", "table", "take_turns"]

torch.set_num_threads(1)

_SECONDS = {"µs": 1e-6, "ms": 1e-3}
# Short calls are timed in batches of about this many seconds.
_BATCH = 2e-3


@dataclass(frozen=True)
class Row:
    """One comparison: what every round measured, and at most what ours may cost, by any limits that are finite."""

    case: str
    unit: str
    plain: Sequence[float]
    ours: Sequence[float]
    again: Sequence[float]
    most: float = math.inf
    """Whatever the plain side costs."""
    most_ratio: float = math.inf
    """Times the plain side; below 1, ours is to be faster."""
    most_more: float = math.inf
    """Beyond the plain side."""

    @property
    def ratio(self) -> float:
        return _ratio(self.ours, self.plain)

    @property
    def more(self) -> float:
        return _difference(self.ours, self.plain)

    @property
    def over(self) -> bool:
        taken = statistics.median(self.ours)
        return taken > self.most or self.ratio > self.most_ratio or self.more > self.most_more

    @property
    def limit(self) -> str:
        limits = (
            (self.most_ratio, f"{self.most_ratio:.2f} times"),
            (self.most_more, f"{self.most_more:+.1f} {self.unit}"),
            (self.most, f"{self.most:.1f} {self.unit}"),
        )
        return ", ".join(f"at most {said}" for limit, said in limits if limit < math.inf)

    def cells(self) -> list[str]:
        return [
            self.case,
            f"{statistics.median(self.plain):.1f} {self.unit}",
            f"{statistics.median(self.ours):.1f} {self.unit}",
            f"{self.ratio:#.3g}",
            f"{self.more:+.1f}",
            f"{_ratio(self.again, self.plain):#.3g} {_difference(self.again, self.plain):+.1f}",
            self.limit,
            "over" if self.over else "ok" if self.limit else "",
        ]


def compare(
    case: str,
    plain: Callable[[], object],
    ours: Callable[[], object],
    *,
    seconds: float,
    unit: str = "µs",
    each: int = 1,
    most: float = math.inf,
    most_ratio: float = math.inf,
    most_more: float = math.inf,
) -> Row:
    """Time two sides for about that many seconds; where a call does something `each` times, the row is of one."""
    scale = _SECONDS[unit] * each
    sides = ([taken / scale for taken in side] for side in take_turns([plain, ours, plain], seconds))
    return Row(case, unit, *sides, most=most, most_ratio=most_ratio, most_more=most_more)


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
                if calls > 1:
                    # A short call finds the caches full of another side's; ours, between two plain ones, always would.
                    side()
                taken.append(_time(side, calls))
    finally:
        gc.enable()
    return samples


def keep_memory() -> None:
    """Let no freed memory go back to the system, from now on.

    By default glibc returns megabytes at a whim. Faulting them in again may take longer than the work, on a virtual
    machine above all: there two equal sides at 1e6 elements differed by 15 %, and by 2 % with memory kept.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: never
        mallopt(-4, 0)  # M_MMAP_MAX: no mappings


def gradient(fn: Callable[..., Any], *leaves: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
    """One forward and backward pass of a function of these tensors."""
    return lambda: torch.autograd.grad(fn(*leaves), leaves)


def peak(side: Callable[[], object]) -> float:
    """Most megabytes of tensors that one call holds at a time, beyond those that were there before."""
    # The allocator's own count, which the profiler records at every change: exact and the same in every run, where a
    # process's resident size hides what fits into memory that was freed before.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        side()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    return max(itertools.accumulate(event["args"]["Bytes"] for event in changes)) / 1e6


def show(rows: Sequence[Row]) -> None:
    """Print rows as a table."""
    table(["case", "plain", "penalties", "ratio", "more", "noise", "limit", ""], [row.cells() for row in rows])


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print cells in columns, the first to the left."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in (header, *lines):
        first, *others = zip(line, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        print("  ".join(cells).rstrip(), flush=True)


def _time(side: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in itertools.repeat(None, calls):
        side()
    return (time.perf_counter() - start) / calls


def _ratio(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def _difference(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.median(x - y for x, y in zip(a, b, strict=True))
