"""What tests of executors share."""

import time
from typing import Any

import numpy as np

import penalties as pn
from penalties.execution.ambient import Modes
from penalties.execution.task import Task

ELSEWHERE = ("thread", "process", "async")
EVERYWHERE = ("inline", *ELSEWHERE)


def healthy(x: Any) -> Any:
    return (x**2).sum()


def probe(executor: pn.Executor, where: Any) -> None:
    """Terms still run there."""
    assert float(executor.run(pn.Pipeline([pn.Term(healthy, runs=where)]), np.array([3.0])).total) == 9.0


def settled(executor: Any) -> None:
    """Nothing runs on any more, or soon."""
    end = time.monotonic() + 10.0
    while executor.abandoned and time.monotonic() < end:
        time.sleep(0.01)
    assert executor.abandoned == 0


def thread_task(fn: Any, timeout: float = 30.0, seconds: float = 1.0) -> Task:
    term = pn.Term(fn, name="term", inputs="x", runs="thread")
    return Task(term, {"x": np.array([seconds])}, (), None, None, timeout, Modes())
