"""Runs pipelines whose terms run in threads, in processes, on a loop, on a cluster, or here."""

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast

from ..errors import InputError, OptionError
from ..functional.options import check_count, check_flag, check_number
from ..pipeline import LossOutput, Pipeline
from ..pipeline.awaitables import is_awaitable
from ..pipeline.call import check_wrt, inputs_of, run_call
from ..pipeline.targets import Gradients
from ..pipeline.term import LONGEST_TIMEOUT, Term, Weight
from .ambient import Modes
from .background import start_thread
from .pools.asynchronous import Async
from .pools.threads import Threads
from .run import Run
from .task import Pool, pool_of

__all__ = ["Executor"]


class Executor:
    """Decides where the terms of a pipeline run, and what happens when one fails or is late.

    `max_workers` threads and as many processes run terms at once; they start with the first term that needs them.
    `timeout` is for terms that have none of their own, in seconds. `sequential` runs every term here, in order, for
    debugging. `streams` are descriptors that processes have as standard output and error, instead of this process's
    own; keep them open until it is closed. Use it in a `with`, or call `close`: nothing stays behind.

    >>> import torch
    >>> import penalties as pn
    >>> def slow(x):
    ...     return (x**2).sum()
    >>> pipeline = pn.Pipeline([pn.Term("l1"), pn.Term(slow, weight=0.5, runs="thread")])
    >>> x = torch.tensor([1.0, -2.0], requires_grad=True)
    >>> with pn.Executor() as executor:
    ...     out = executor.run(pipeline, x)
    >>> out.metrics()
    {'l1': 3.0, 'l1_weighted': 3.0, 'slow': 5.0, 'slow_weighted': 2.5, 'total': 5.5}
    >>> out.total.backward()
    >>> x.grad
    tensor([ 2., -3.])
    """

    def __init__(
        self,
        max_workers: int | None = None,
        timeout: float = 30.0,
        sequential: bool = False,
        *,
        streams: tuple[int, int] | None = None,
    ) -> None:
        """Check the options; nothing starts yet."""
        if max_workers is not None:
            check_count("Executor", "max_workers", max_workers, 1)
        check_flag("Executor", "sequential", sequential)
        expected = f"seconds above 0 and up to {LONGEST_TIMEOUT:g}"
        self.max_workers: int = max_workers or os.cpu_count() or 1
        self.timeout: float = check_number("Executor", "timeout", timeout, expected, low=5e-324, high=LONGEST_TIMEOUT)
        self.sequential: bool = bool(sequential)
        self.streams: tuple[int, int] | None = _checked(streams)
        self._lock = threading.Lock()
        self._pools: dict[str, Any] = {}
        self._closed = False
        # One that is forgotten is closed all the same.
        self._process = os.getpid()
        self._close = weakref.finalize(self, _close_all, self._pools, self._process)

    def run(
        self,
        pipeline: Pipeline,
        inputs: Any,
        *,
        wrt: str | Sequence[str] | None = None,
        weights: Mapping[str, Weight] | None = None,
        step: Any = None,
        state: Mapping[str, Any] | None = None,
        cosines: bool = False,
        keep: bool = False,
    ) -> LossOutput:
        """Evaluate every term where it runs, and add them up.

        `inputs` maps names to inputs, or is one input that every term gets. An input may be a `concurrent.futures`
        future: terms that do not read it start before it is there. `weights`, `step` and `state` are those of a call of
        the `pipeline`. With `wrt`, `cosines` or `keep`, gradients are taken as by its `value_and_grad`. The first
        error of a term that is not to be skipped is raised when all others are done; `error.output` has their results.
        """
        return self._run(Run(self), pipeline, inputs, wrt, weights, step, state, cosines, keep)

    def _run(
        self,
        run: Run,
        pipeline: Pipeline,
        inputs: Any,
        wrt: str | Sequence[str] | None,
        weights: Mapping[str, Weight] | None,
        step: Any,
        state: Mapping[str, Any] | None,
        cosines: bool,
        keep: bool,
    ) -> LossOutput:
        if os.getpid() != self._process:
            raise RuntimeError("this Executor belongs to the process that created it; create a new one in this fork")
        if self._closed:
            raise RuntimeError("this Executor is closed; make a new one")
        if not isinstance(cast("object", pipeline), Pipeline):
            raise OptionError("Executor.run", "pipeline", pipeline, "a Pipeline")
        gradients = None
        if wrt is not None or cosines or keep:
            gradients = Gradients(check_wrt("Executor.run", wrt), bool(cosines), bool(keep))
        named, positional = _given(inputs)
        step = _as_number(step)
        try:
            positional = tuple(_arrived("input", value) for value in positional)
            if any(is_awaitable(value) for value in named.values()):
                run.start_early(pipeline.all_terms, named, step, state or {}, gradients)
                named = {name: _arrived(name, value) for name, value in named.items()}
            given = inputs_of(pipeline, positional, named)
            return run_call(pipeline, given, run, weights=weights, step=step, state=state, gradients=gradients)
        except BaseException:
            run.cancel()
            if not self._close.alive and not threading.main_thread().is_alive():
                # Python exits and has closed this executor under a daemon thread, which has no caller: it ends.
                raise SystemExit from None
            raise

    async def run_async(
        self,
        pipeline: Pipeline,
        inputs: Any,
        *,
        wrt: str | Sequence[str] | None = None,
        weights: Mapping[str, Weight] | None = None,
        step: Any = None,
        state: Mapping[str, Any] | None = None,
        cosines: bool = False,
        keep: bool = False,
    ) -> LossOutput:
        """The same as `run`, with its arguments, without blocking the event loop; an input may be an awaitable, too.

        Where the awaiting task is cancelled, terms that still run are stopped as after a timeout.

        >>> import asyncio
        >>> import numpy as np
        >>> import penalties as pn
        >>> async def service(x):
        ...     await asyncio.sleep(0.01)
        ...     return x.sum()
        >>> async def main():
        ...     with pn.Executor() as executor:
        ...         return await executor.run_async(pn.Pipeline([service]), np.ones(3))
        >>> float(asyncio.run(main()).total)
        3.0
        """
        loop = asyncio.get_running_loop()
        named, positional = _given(inputs)
        by_name = named or dict.fromkeys(("input",), *positional)
        awaited = {name: value for name, value in by_name.items() if hasattr(value, "__await__")}
        promised: dict[str, Future[Any]] = {name: Future() for name in awaited}
        keeping = [asyncio.ensure_future(_promise(value, promised[name])) for name, value in awaited.items()]
        given = promised.get("input", *positional) if positional else {**named, **promised}
        run, modes, context = Run(self), Modes(), contextvars.copy_context()
        # What went wrong is a result, too: a cancelled caller never reads it, and asyncio would warn of that.
        found: Future[tuple[LossOutput | None, BaseException | None]] = Future()

        def work() -> None:
            try:
                with modes():
                    output = context.run(self._run, run, pipeline, given, wrt, weights, step, state, cosines, keep)
            except BaseException as error:
                found.set_result((None, error))
            else:
                found.set_result((output, None))

        start_thread(work, found, "penalties-run")
        try:
            output, error = await asyncio.shield(asyncio.wrap_future(found, loop=loop))
        except asyncio.CancelledError:
            await loop.run_in_executor(None, run.cancel)
            raise
        finally:
            for one in keeping:
                one.cancel()
            for promise in promised.values():
                promise.cancel()
        if error is not None:
            raise error
        assert output is not None, "without an error there is one"
        return output

    def close(self) -> None:
        """Stop everything that still runs, and leave nothing behind. Closing twice does nothing."""
        with self._lock:
            self._closed = True
        self._close()

    def __enter__(self) -> "Executor":
        """The executor itself, closed at the end."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """What it was made with."""
        return f"Executor(max_workers={self.max_workers}, timeout={self.timeout:g}, sequential={self.sequential})"

    @property
    def abandoned(self) -> int:
        """How many terms run on although nothing waits for them: threads that hang, coroutines that will not stop."""
        return sum(getattr(pool, "abandoned", 0) for pool in list(self._pools.values()))

    def pool(self, term: Term) -> Pool:
        """The pool that a term runs in."""
        name = pool_of(term)
        with self._lock:
            if self._closed:
                raise RuntimeError("this Executor is closed; make a new one")
            if name not in self._pools:
                self._pools[name] = _POOLS[name](self)
            return self._pools[name]


def _given(inputs: Any) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Inputs by name, or the one that every term gets."""
    if isinstance(inputs, Mapping):
        for name in cast("Mapping[object, Any]", inputs):
            if not isinstance(name, str):
                raise OptionError("Executor.run", "inputs", name, "names, each a string")
        return dict(cast("Mapping[str, Any]", inputs)), ()
    return {}, (inputs,)


def _arrived(name: str, value: Any) -> Any:
    """An input that may still be a future."""
    if isinstance(value, Future):
        return cast("Future[Any]", value).result()
    if hasattr(value, "__await__"):
        raise InputError(f'the input "{name}" is an awaitable; await it, or use run_async')
    return value


def _as_number(step: Any) -> Any:
    """The step as an int if it is a 0-d array: terms that run elsewhere receive a plain number."""
    return int(step) if hasattr(step, "shape") and not step.shape else step


async def _promise(awaitable: Any, promise: "Future[Any]") -> None:
    """Resolve a future with the result of an awaitable."""
    try:
        found = await awaitable
    except asyncio.CancelledError:
        promise.cancel()
        raise
    except Exception as error:
        promise.set_exception(error)
    else:
        promise.set_result(found)


def _close_all(pools: dict[str, Pool], process: int) -> None:
    if os.getpid() != process:
        # A fork of the caller: the workers are not its own.
        return
    with contextlib.ExitStack() as closing:
        # Every pool, even where closing one fails.
        for pool in pools.values():
            closing.callback(pool.close)
        pools.clear()


def _checked(streams: tuple[int, int] | None) -> tuple[int, int] | None:
    if streams is not None:
        expected = "None, or two open descriptors: for standard output, and for standard error"
        try:
            for one in streams:
                os.fstat(one)
        except (OSError, TypeError, ValueError) as error:
            raise OptionError("Executor", "streams", streams, expected) from error
        if len(streams) != 2:
            raise OptionError("Executor", "streams", streams, expected)
    return streams


def _processes(executor: Executor) -> Pool:
    if sys.platform == "win32":
        raise OptionError("Executor", "runs", "process", '"thread" on Windows, which cannot fork')
    from .pools.processes import Processes

    return Processes(executor.max_workers, executor.streams)


def _ray(executor: Executor) -> Pool:
    from .pools.ray import RayPool

    return RayPool(executor.max_workers)


_POOLS: Final[dict[str, Callable[[Executor], Pool]]] = {
    "thread": lambda executor: Threads(executor.max_workers),
    "process": _processes,
    "async": lambda executor: Async(),
    "ray": _ray,
}
"""A new pool is one class in its own file, and one line here."""
