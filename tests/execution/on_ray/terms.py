"""What tests of Ray share."""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import penalties as pn
from penalties.execution.task import Task

PATIENCE = 60.0
"""Seconds in which what happens by and by has happened, on a machine that has other things to do."""


def connect(**options: Any) -> None:
    """What a user does who has a cluster: here a small one of their own."""
    import ray

    ray.init(
        **{
            "address": "local",
            "num_cpus": 2,
            "object_store_memory": 100_000_000,
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            **options,
        }
    )


def away(fn: Any, **arguments: Any) -> pn.Pipeline:
    return pn.Pipeline([pn.Term(fn, runs="ray", **arguments)])


def squares(x: Any) -> Any:
    return (x**2).sum()


def probe(executor: pn.Executor) -> None:
    """The where still works."""
    assert float(executor.run(away(squares), np.array([3.0])).total) == 9.0


def eventually(happened: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def gone(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def task(fn: Any, x: Any = None, **arguments: Any) -> Task:
    """What a where is given, without a run around it."""
    term = pn.Term(fn, runs="ray", **arguments)
    return Task(term, {"x": np.ones(3) if x is None else x}, (), None, None, 60.0, contextlib.nullcontext)


def processes(executor: pn.Executor, count: int = 2) -> list[int]:
    """The processes of the executor's actors, as many as there can be."""
    found: set[int] = set()

    def who(x: Any) -> Any:
        time.sleep(0.2)
        return np.float64(0.0), {"process": os.getpid()}

    def look() -> bool:
        terms = [pn.Term(who, name=f"who{where}", runs="ray", differentiable=False) for where in range(count)]
        found.clear()
        found.update(
            int(term.metrics["process"]) for term in executor.run(pn.Pipeline(terms), np.ones(1)).terms.values()
        )
        return len(found) == count

    eventually(look)
    return sorted(found)


class Noted:
    """A term that notes each time it is loaded."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, x: Any) -> Any:
        return x.sum()

    def __reduce__(self) -> Any:
        return _noted, (self.log,)


def _noted(log: Path) -> Noted:
    with log.open("a") as file:
        file.write("loaded\n")
    return Noted(log)


class SlowToLoad:
    def __call__(self, x: Any) -> Any:
        return x.sum()

    def __reduce__(self) -> Any:
        return _slowly, ()


def _slowly() -> SlowToLoad:
    time.sleep(1.5)
    return SlowToLoad()


class Unloadable(SlowToLoad):
    def __reduce__(self) -> Any:
        return _raise, ()


def _raise() -> None:
    raise RuntimeError("not here")
