"""What a fault is, and terms that are well beside it."""

import asyncio
import dataclasses
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import penalties as pn

EVERYWHERE = ("inline", "thread", "process", "async")
ELSEWHERE = ("thread", "process", "async")
PROCESS = ("process",)
FORKABLE = ("numpy", "torch")
"""JAX has threads, and says itself that a fork may hang."""

released = threading.Event()
"""Set by the test when it has seen enough: what hangs in a thread or on a loop goes on, and ends."""

CHATTER = "a line of output; "
LATE = 0.25
"""Seconds that a term which hangs may take."""


@dataclass(frozen=True)
class Fault:
    """A function, and what comes of a term that calls it."""

    fn: Callable[..., Any]
    outcome: type[Exception] | None
    """The error that the term has, or None where it is well after all, and is worth `squares`."""
    says: str = ""
    """What its message has to say."""
    where: tuple[str, ...] = EVERYWHERE
    timeout: float | None = None
    state: bool = False
    """Whether its new state is to be what `huge_state` gave."""
    costs: float = 0.0
    """Seconds beyond a few milliseconds: those that cost a lot run less often."""
    alone: bool = False
    """Whether it harms others that run there, as documented, and is never mixed with them."""
    libraries: tuple[str, ...] = ("numpy", "torch", "jax")
    ray: bool = True
    """Whether it may run on a cluster, too, if it may in a process: some are about our own processes."""

    @property
    def name(self) -> str:
        return self.fn.__name__

    @property
    def ways(self) -> tuple[str, ...]:
        """Every way to run it."""
        return (*self.where, "ray") if "process" in self.where and self.ray and not self.alone else self.where

    def on(self, way: str) -> "Fault":
        """The same, as it shows there: what ends an actor is told in Ray's words."""
        if way != "ray" or self.outcome not in (pn.WorkerLostError, pn.TermTimeoutError):
            return self
        return dataclasses.replace(self, says="", timeout=self.timeout and 1.0, costs=self.costs + 2.0)


FAULTS: list[Fault] = []


def fault(outcome: type[Exception] | None, says: str = "", **more: Any) -> Callable[[Callable[..., Any]], Any]:
    def put(fn: Callable[..., Any]) -> Callable[..., Any]:
        FAULTS.append(Fault(fn, outcome, says, **more))
        return fn

    return put


def awaited(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same term as a coroutine that lets others run first."""
    if asyncio.iscoroutinefunction(fn):
        return fn

    @functools.wraps(fn)
    async def later(*arguments: Any, **keywords: Any) -> Any:
        await asyncio.sleep(0.001)
        return fn(*arguments, **keywords)

    return later


# Terms that are well. NumPy has no gradients of its own: there they bring theirs.


def squares(x: Any) -> Any:
    return brought(x, (x * x).sum(), 2 * x)


def cubes(x: Any) -> Any:
    return brought(x, (x * x * x).sum(), 3 * x * x)


def line(x: Any) -> Any:
    return brought(x, 3 * x.sum(), 0 * x + 3)


HEALTHY = {squares: lambda x: (x * x, 2 * x), cubes: lambda x: (x**3, 3 * x * x), line: lambda x: (3 * x, 0 * x + 3)}
"""Each with what it adds up and the gradient, in NumPy."""


def brought(x: Any, value: Any, slope: Any, **more: Any) -> Any:
    if isinstance(x, np.ndarray) or more:
        return pn.Evaluation(value, gradient={"x": slope} if isinstance(x, np.ndarray) else None, **more)
    return value


def hang() -> None:
    """Until the test has seen enough."""
    released.wait(60)
