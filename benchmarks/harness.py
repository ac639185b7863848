"""Two sides timed in turns, and the table of the results.

The machine changes speed while it measures, so a round times both sides, and every figure is the median over rounds of
what the sides differ by within a round. Each round times the plain side twice: the column `self` is what it differs by
from itself, which is the noise.
"""

import gc
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["FIXED_ALLOCATOR", "Row", "compare", "dump", "in_process", "peak_memory", "print_table", "show"]

torch.set_num_threads(1)

FIXED_ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""Settings of glibc by which freed memory stays with the process.

By default glibc adapts its thresholds, and returns megabytes to the system whenever it likes. Faulting them in again
may take longer than the work itself: two equal sides at 1e6 elements differed by 15 %, and by 2 % with these settings.
"""

_SECONDS = {"µs": 1e-6, "ms": 1e-3}
# Short calls are timed in batches of about this many seconds.
_BATCH = 2e-3


@dataclass(frozen=True)
class Row:
    """One comparison: what every round measured, and the most that ours may cost."""

    case: str
    unit: str
    plain: Sequence[float]
    ours: Sequence[float]
    again: Sequence[float]
    """The plain side once more."""
    most: float = math.inf
    """In units, whatever the plain side costs."""
    most_ratio: float = math.inf
    """Times the plain side; a limit below 1 means that ours must be faster."""
    most_more: float = math.inf
    """In units above the plain side."""

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
        return ", ".join(text for limit, text in limits if limit < math.inf)

    def cells(self) -> list[str]:
        digits = 1 if self.unit == "µs" else 2
        return [
            self.case,
            f"{statistics.median(self.plain):.{digits}f} {self.unit}",
            f"{statistics.median(self.ours):.{digits}f} {self.unit}",
            f"{self.ratio:#.3g}",
            f"{self.more:+.{digits}f}",
            f"{_ratio(self.again, self.plain):#.3g} {_difference(self.again, self.plain):+.{digits}f}",
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
    """Time two sides for about this many seconds, at least twice; with `each`, a row is about one of so many things."""
    scale = _SECONDS[unit] * each
    sides = ([taken / scale for taken in side] for side in _take_turns([plain, ours, plain], seconds))
    return Row(case, unit, *sides, most=most, most_ratio=most_ratio, most_more=most_more)


def in_process(run: str, scale: float, environment: Mapping[str, str]) -> list[Row]:
    """Rows of `module:function`, called in a fresh interpreter with these variables set."""
    module, function = run.split(":")
    code = f"from {module} import {function} as run; from benchmarks.harness import dump; print(dump(run({scale})))"
    command = [sys.executable, "-c", code]
    plain = {name: value for name, value in os.environ.items() if name not in FIXED_ALLOCATOR}
    done = subprocess.run(command, env={**plain, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    return [Row(**row) for row in json.loads(done.stdout)]


def dump(rows: Sequence[Row]) -> str:
    """The text that `in_process` turns back into rows."""
    return json.dumps([asdict(row) for row in rows])


def peak_memory(side: Callable[[], object]) -> float:
    """The most megabytes of tensors that one call holds at a time, beyond those that were there before."""
    # The allocator's own count, which the profiler records at every change, is the same in every run; the resident
    # size of the process hides whatever fits into memory that was freed before.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        side()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    return max(itertools.accumulate(event["args"]["Bytes"] for event in changes)) / 1e6


def show(rows: Sequence[Row], *, judged: bool = True) -> None:
    """Print rows as a table, with or without the verdict."""
    header = ["case", "plain", "penalties", "ratio", "more", "self", "limit", ""]
    lines = [row.cells() for row in rows]
    print_table(header, lines) if judged else print_table(header[:-1], [line[:-1] for line in lines])


def print_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print cells in columns, the first one aligned to the left."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for first, *others in (header, *lines):
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        print("  ".join(cells).rstrip(), flush=True)


def _take_turns(sides: Sequence[Callable[[], object]], seconds: float) -> list[list[float]]:
    """Seconds per call of every side in every round."""
    once = [min(_time(side, 1) for _ in range(2)) for side in sides]
    calls = max(1, round(min(_BATCH, seconds) / min(once)))
    rounds = max(1, round(seconds / (2 * calls * sum(once))))
    samples: list[list[float]] = [[] for _ in sides]
    turns = list(zip(sides, samples, strict=True))
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            # There and back, so that no side always follows the same other one.
            for side, taken in (*turns, *reversed(turns)):
                if calls > 1:
                    # A short call finds the caches filled by another side; ours, between two plain ones, always would.
                    side()
                taken.append(_time(side, calls))
    finally:
        gc.enable()
    return samples


def _time(side: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in itertools.repeat(None, calls):
        side()
    return (time.perf_counter() - start) / calls


def _ratio(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def _difference(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.median(x - y for x, y in zip(a, b, strict=True))
