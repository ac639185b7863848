"""Terms that are awaited, on an event loop of the executor's own, never on the caller's."""

import asyncio
import inspect
import sys
import threading
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, cast

from ... import trees
from ...errors import TermTimeoutError
from ...pipeline.evaluation import Evaluation
from ..ambient import Modes
from ..awaiting import wait_here
from ..task import Task
from .threads import RunningThread, Threads

__all__ = ["Async"]

_MOST: Final = 101
"""Terms that may be awaited at once: those of a pipeline, and its base."""

_BEAT: Final = 0.5
"""Seconds in which a loop that is not blocked answers."""


class Async:
    """An event loop in a thread of its own, and for each term a thread that waits for its coroutine."""

    def __init__(self) -> None:
        """The loop starts with the first term."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._threads = Threads(_MOST)
        self._blocked: list[threading.Thread] = []
        self._stubborn: list[asyncio.Task[Any]] = []

    @property
    def abandoned(self) -> int:
        """Loops that a coroutine blocks, coroutines that ignored being cancelled, and threads that hang."""
        blocked = sum(thread.is_alive() for thread in self._blocked)
        return blocked + sum(not task.done() for task in self._stubborn) + self._threads.abandoned

    def start(self, task: Task) -> "_RunningAsync":
        """Call the function in a thread; what it returns is awaited on the loop."""
        running = _RunningAsync(self)
        # JAX differentiates what happens in one thread: there, the term has a loop of its own.
        waiter = wait_here if task.wrt and _uses_jax(task) else running.wait
        running.thread = self._threads.start(task, waiter)
        return running

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, running."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_forever, args=(self._loop,), name="penalties-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def runs_on(self, coroutine: asyncio.Task[Any] | None, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a coroutine that was cancelled runs on, because it blocks the loop or ignores it."""
        ended, beat = threading.Event(), threading.Event()

        def look() -> None:
            if coroutine is None or coroutine.done():
                ended.set()
            else:
                coroutine.add_done_callback(lambda _: ended.set())

        try:
            loop.call_soon_threadsafe(look)
            if ended.wait(_BEAT):
                return False
            loop.call_soon_threadsafe(beat.set)
        except RuntimeError:
            # The executor was closed meanwhile, and its loop with everything on it.
            return False
        if not beat.wait(_BEAT):
            self._replace(loop)
        elif coroutine is not None:
            self._stubborn = [task for task in (*self._stubborn, coroutine) if not task.done()]
        return True

    def _replace(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give up on a loop that is blocked, and on what else is on it; the next term gets a new one."""
        with self._lock:
            if self._loop is loop and self._thread is not None:
                self._blocked = [thread for thread in (*self._blocked, self._thread) if thread.is_alive()]
                self._loop = self._thread = None
                # It ends as soon as it is free again.
                loop.call_soon_threadsafe(loop.stop)

    def close(self) -> None:
        """Cancel what is awaited, and end the loop and the threads."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_BEAT)
        self._threads.close()


class _RunningAsync:
    """A term whose coroutine is on the loop, and the thread that waits for it."""

    def __init__(self, pool: Async) -> None:
        self.pool = pool
        self.thread: RunningThread | None = None
        self._lock = threading.Lock()
        self._waited: Future[Any] | None = None
        self._coroutine: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled = False
        self._late = False

    def wait(self, awaitable: Any) -> Any:
        """In the thread: wait for what the loop awaits."""
        waited: Future[Any]
        if isinstance(awaitable, Future):
            waited = cast("Future[Any]", awaitable)
        else:
            loop, noted = self.pool.loop(), self._noted(awaitable, Modes())
            try:
                waited = asyncio.run_coroutine_threadsafe(noted, loop)
            except RuntimeError:
                # The executor was closed meanwhile.
                for coroutine in (noted, awaitable):
                    getattr(coroutine, "close", int)()
                raise
            self._loop = loop
        with self._lock:
            self._waited = waited
            if self._cancelled:
                waited.cancel()
        try:
            found = waited.result()
        finally:
            _close_unstarted(awaitable)
            # Its context refers to this object: the cycle would keep its graph until the garbage collector runs.
            self._coroutine = self._waited = None
        if isinstance(found, _Ended):
            raise found.error
        return found

    async def _noted(self, awaitable: Any, modes: Modes) -> Any:
        self._coroutine = asyncio.current_task()
        try:
            return await _InModes(awaitable, modes)
        except (SystemExit, KeyboardInterrupt) as error:
            return _Ended(error)

    def result(self) -> Evaluation:
        """Wait until it is done or late; a late one is cancelled."""
        thread = self.thread
        assert thread is not None, "started"
        try:
            return thread.result()
        except TermTimeoutError as late:
            self._late = True
            if not late.abandoned or self._waited is None:
                raise
            runs_on = self._stop()
            if not runs_on:
                # Its thread ends with it, and no longer counts as abandoned.
                thread.done.wait(_BEAT)
            end = "could not be cancelled, since it blocks or ignores that: it runs on" if runs_on else "was cancelled"
            message = f"took more than {thread.timeout:g} s, and {end}"
            raise TermTimeoutError(thread.name, message, abandoned=runs_on) from None

    def cancel(self) -> None:
        """Cancel the coroutine, if it allows that."""
        if not self._late:
            self._stop()

    def _stop(self) -> bool:
        """Cancel the coroutine; returns whether it runs on all the same."""
        with self._lock:
            self._cancelled = True
            # Before it is cancelled: the waiting thread then lets go of both.
            waited, coroutine = self._waited, self._coroutine
        if waited is None:
            assert self.thread is not None, "started"
            self.thread.cancel()
            return False
        waited.cancel()
        return self._loop is not None and self.pool.runs_on(coroutine, self._loop)


def _close_unstarted(awaitable: Any) -> None:
    """Close a coroutine that never began, because the loop ended first: Python would warn that nobody awaited it."""
    if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
        awaitable.close()


@dataclass(frozen=True, slots=True)
class _Ended:
    """What a coroutine raised to end the program. Raised on the loop, it would end that and every other term."""

    error: BaseException


class _InModes:
    """An awaitable whose every step runs in the modes of the thread that waits for it."""

    def __init__(self, awaitable: Any, modes: Modes) -> None:
        self.awaitable = awaitable
        self.modes = modes

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self.awaitable.__await__()
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                with self.modes.step():
                    waited_for = steps.send(sent) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                return end.value
            finally:
                # Its traceback refers to this frame.
                thrown = None
            try:
                sent = yield waited_for
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                thrown = error


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.wait(pending, timeout=_BEAT))
        # Tasks that ignored it have been reported as abandoned; asyncio need not report them again.
        loop.set_exception_handler(lambda loop, context: None)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _uses_jax(task: Task) -> bool:
    return "jax" in sys.modules and any(
        isinstance(array, sys.modules["jax"].Array) for array in trees.arrays(list(task.inputs.values()))
    )
