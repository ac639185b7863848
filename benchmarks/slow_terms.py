"""Terms that keep Python busy, and terms that wait. Workers import this module, so it imports no array library."""

import asyncio
import statistics
import time
from typing import Any

__all__ = ["busy", "loops_for", "wait"]


def busy(x: Any, *, loops: int) -> Any:
    """The sum of squares, after so many loops that hold the interpreter's lock."""
    _loop(loops)
    return (x * x).sum()


async def wait(x: Any, *, seconds: float) -> Any:
    """The sum of squares, after a wait as for a service."""
    await asyncio.sleep(seconds)
    return (x * x).sum()


def loops_for(seconds: float) -> int:
    """How many loops take about this long here and now."""
    loops = 200_000

    def taken() -> float:
        start = time.perf_counter()
        _loop(loops)
        return time.perf_counter() - start

    return max(1, round(loops * seconds / statistics.median(taken() for _ in range(9))))


def _loop(loops: int) -> int:
    total = 0
    for i in range(loops):
        total += i * i % 7
    return total
