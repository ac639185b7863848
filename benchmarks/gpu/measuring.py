"""Sides timed against a limit on a GPU: milliseconds, times the limit, time of the kernels alone, memory.

A limit is the time that the least possible work takes: bytes over the bandwidth of a copy, or matrix products by
themselves, both measured in the same run. Every line is printed as soon as it is measured.
"""

import functools
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from ..harness import Row

__all__ = [
    "DEVICE",
    "GPU",
    "OURS",
    "Machine",
    "Measured",
    "machine",
    "measure",
    "memory_row",
    "ratio_row",
    "times",
    "title",
]

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
Side = Callable[[], object]
OURS = "penalties"

_ROUNDS = 5
# Calls follow one another for about this many seconds, as in training: the host does not wait between them.
_ROUND = 0.1
# A call that takes more milliseconds is not bound by the host, so its kernels are not timed apart.
_LONG = 20.0
_QUEUED = 4


class Machine(NamedTuple):
    """What the GPU can do at most."""

    bandwidth: float
    """Bytes that a copy reads and writes, per millisecond."""
    products: float
    """Operations of a product of bfloat16 matrices, per millisecond."""

    def moving(self, bytes_: int) -> float:
        """Milliseconds that it takes to move so many bytes."""
        return bytes_ / self.bandwidth


@functools.cache
def machine() -> Machine:
    """Measured once, before everything else."""
    source = torch.ones(2**29 if GPU else 2**16, dtype=torch.bfloat16, device=DEVICE)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / statistics.median(times(lambda: target.copy_(source)))
    size = 8192 if GPU else 64
    a, b = (torch.randn(size, size, device=DEVICE).bfloat16() for _ in range(2))
    products = 2 * size**3 / statistics.median(times(lambda: a @ b))
    name = (
        torch.cuda.get_device_name() if GPU else "no GPU: small sizes on the CPU, which show only that all of it runs"
    )
    print(f"{name}; torch {torch.__version__}")
    print(f"a copy moves {bandwidth / 1e9:.2f} TB/s, a matrix product takes {products / 1e9:.0f} TFLOP/s\n", flush=True)
    return Machine(bandwidth, products)


def title(text: str) -> None:
    """Start a table."""
    machine()
    print(f"\n{text}")
    columns = f"{'ms':>9}  {'x limit':>8}  {'kernels':>8}  {'GB':>7}"
    print(f"{'':58}{columns}  must", flush=True)


class Measured(NamedTuple):
    """What one side takes."""

    milliseconds: list[float]
    gigabytes: float
    """The most memory that a call takes beyond what there was before it."""


def times(side: Side) -> list[float]:
    """Milliseconds of a call among others, in each round."""
    side()  # compiles
    _wait()
    start = time.perf_counter()
    side()
    _wait()
    calls = max(1, min(50, round(_ROUND / (time.perf_counter() - start)))) if GPU else 1
    taken: list[float] = []
    for _ in range(_ROUNDS if GPU else 1):
        _wait()
        start = time.perf_counter()
        for _ in range(calls):
            side()
        _wait()
        taken.append(1e3 * (time.perf_counter() - start) / calls)
    return taken


def measure(
    case: str, limit: float, sides: Mapping[str, Side], most: Mapping[str, float] | None = None
) -> tuple[dict[str, Measured], list[Row]]:
    """Measure every side, against a limit in milliseconds; the rows of those that have a most, in times the limit.

    A side that does not fit into memory, or that its library cannot run, is left out, and its line says so.
    """
    found: dict[str, Measured] = {}
    rows: list[Row] = []
    for name, side in sides.items():
        label = f"{case}: {name}"
        # What the side before, or one that did not fit, has left.
        gc.collect()
        if GPU:
            torch.cuda.empty_cache()
        try:
            one = Measured(times(side), _peak(side))
            taken = statistics.median(one.milliseconds)
            kernels = _kernels(side, taken)
        except Exception as error:
            if name.startswith(OURS):
                raise
            print(f"{label:<58}not measured: {type(error).__name__}: {str(error).splitlines()[0][:80]}", flush=True)
            continue
        found[name] = one
        bound = (most or {}).get(name)
        verdict = ""
        if bound is not None and GPU:
            rows.append(ratio_row(label, [limit], one.milliseconds, bound))
            verdict = f"{bound:.2f} {_verdict(rows[-1])}"
        figures = f"{taken:9.3f}  {taken / limit:8.2f}  {kernels:8.3f}  {one.gigabytes:7.3f}"
        print(f"{label:<58}{figures}  {verdict}", flush=True)
    return found, rows


def ratio_row(case: str, plain: Sequence[float], ours: Sequence[float], most: float) -> Row:
    """Of milliseconds: ours may take so many times the other."""
    middle = [statistics.median(plain)] * len(ours)
    return Row(case, "ms", middle, ours, middle, most_ratio=most)


def memory_row(
    case: str, plain: float, ours: float, *, most: float = math.inf, most_ratio: float = math.inf
) -> list[Row]:
    """Of gigabytes; none without a GPU, where they are not counted."""
    if not GPU:
        return []
    row = Row(case, "GB", [plain], [ours], [plain], most=most, most_ratio=most_ratio)
    print(f"{case:<58} {ours:.3f} GB, must {min(most, most_ratio * plain):.3f} {_verdict(row)}", flush=True)
    return [row]


def _verdict(row: Row) -> str:
    return "MISSED" if row.over else "met"


def _peak(side: Side) -> float:
    if not GPU:
        return 0.0
    gc.collect()
    _wait()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    side()
    _wait()
    return (torch.cuda.max_memory_allocated() - before) / 1e9


def _kernels(side: Side, taken: float) -> float:
    """Milliseconds that a call keeps the GPU busy: the calls are queued while it is busy with something else."""
    if not GPU or taken > _LONG:
        return taken
    square = torch.empty(8192, 8192, dtype=torch.bfloat16, device=DEVICE)
    product = 2 * 8192**3 / machine().products
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(1 + round(2 * _QUEUED * taken / product)):
        square @ square
    start.record()
    for _ in range(_QUEUED):
        side()
    end.record()
    _wait()
    return start.elapsed_time(end) / _QUEUED


def _wait() -> None:
    if GPU:
        torch.cuda.synchronize()
