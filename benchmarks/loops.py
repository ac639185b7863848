"""Terms that only Python keeps busy, and terms that only wait; workers import this, so it imports no library."""

import asyncio
import statistics
import time
from typing import Any

__all__ = ["busy", "rounds_for", "wait"]


def busy(x: Any, *, rounds: int) -> Any:
    """The sum of squares, after so many rounds of a loop that holds the interpreter's lock."""
    _loop(rounds)
    return (x * x).sum()


async def wait(x: Any, *, seconds: float) -> Any:
    """The sum of squares, after a wait as for a service."""
    await asyncio.sleep(seconds)
    return (x * x).sum()


def rounds_for(seconds: float) -> int:
    """How many rounds of the loop take about so long here and now."""
    rounds = 200_000
    return round(rounds * seconds / statistics.median(_time(rounds) for _ in range(9)))


def _loop(rounds: int) -> int:
    total = 0
    for i in range(rounds):
        total += i * i % 7
    return total


def _time(rounds: int) -> float:
    start = time.perf_counter()
    _loop(rounds)
    return time.perf_counter() - start
