"""Terms that are awaited, each on its own event loop, never on the caller's."""

import asyncio
import contextlib
import inspect
import sys
import threading
import time
from collections import OrderedDict
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
"""Terms that may be awaited at once: those of a pipeline, and its base. As many loops are kept."""

_GRACE: Final = 0.5
"""Seconds that a coroutine has to end once it was cancelled."""


class Async:
    """For each term an event loop, and a thread that waits for its coroutine.

    A coroutine that blocks its loop holds up no other term. A term keeps its loop, as a client of a service belongs
    to one.
    """

    def __init__(self) -> None:
        """Loops start as terms need them."""
        self._lock = threading.Lock()
        self._loops: OrderedDict[str, _Loop] = OrderedDict()
        """By the name of the term."""
        self._retired: list[_Loop] = []
        """Loops on which a coroutine runs that was given up."""
        self._threads = Threads(_MOST, grace=_GRACE)
        self._closed = False

    @property
    def abandoned(self) -> int:
        """Coroutines that block or ignored being cancelled, and threads that hang."""
        return self._threads.abandoned

    def start(self, task: Task) -> "_RunningAsync":
        """Call the function in a thread; what it returns is awaited on the loop of the term."""
        running = _RunningAsync(self, task)
        with running.lock:
            running.thread = self._threads.start(task, running.wait)
        return running

    def take_loop(self, name: str) -> "_Loop":
        """The loop of a term, running; the caller of this is one of its users until it calls `leave_loop`."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the executor is closed")
            loop = self._loops.get(name)
            if loop is None or loop.over:
                self._loops[name] = loop = _Loop()
            self._loops.move_to_end(name)
            loop.users += 1
            if len(self._loops) > _MOST:
                unused = next((other for other in self._loops if not self._loops[other].users), None)
                if unused is not None:
                    self._loops.pop(unused).stop()
            return loop

    def leave_loop(self, loop: "_Loop") -> None:
        """One user less; a loop that was given up ends with the last."""
        with self._lock:
            loop.users -= 1
            if not loop.users and loop in self._retired:
                self._retired.remove(loop)
                loop.stop()

    def retire_loop(self, name: str) -> None:
        """A coroutine on the loop of this term was given up: the next one gets another loop."""
        with self._lock:
            loop = self._loops.pop(name, None)
            if loop is not None and loop.users:
                self._retired.append(loop)
            elif loop is not None:
                loop.stop()

    def close(self) -> None:
        """Cancel what is awaited, and end the loops and the threads."""
        with self._lock:
            self._closed = True
            loops = [*self._loops.values(), *self._retired]
            self._loops.clear()
            self._retired.clear()
        for loop in loops:
            loop.stop()
        end = time.monotonic() + 2 * _GRACE
        for loop in loops:
            loop.thread.join(max(0.0, end - time.monotonic()))
        self._threads.close()


class _Loop:
    """An event loop that runs in its own thread until it is stopped."""

    def __init__(self) -> None:
        self.users: int = 0
        self.over: bool = False
        """Whether it was stopped, perhaps by a coroutine on it."""
        self._lock = threading.Lock()
        self._waited: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self.thread: threading.Thread = threading.Thread(target=self._run, name="penalties-loop", daemon=True)
        try:
            self.thread.start()
        except BaseException:
            self._loop.close()
            raise

    def wait(self, coroutine: Any) -> Any:
        """In another thread: wait for a coroutine on this loop."""
        with self._lock:
            waited: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._waited.add(waited)
        try:
            return waited.result()
        finally:
            self._waited.discard(waited)
            # What it raised refers to this frame.
            del waited

    def stop(self) -> None:
        """Stop it as soon as it is free."""
        # A coroutine may have stopped it before.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            # What a callback of a term raises ends this loop and nothing else.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
        finally:
            # Set before waiting callers wake, so that none of them reuses this loop.
            self.over = True
            pending = asyncio.all_tasks(loop)
            for task in pending:
                task.cancel()
            if pending:
                loop.run_until_complete(asyncio.wait(pending, timeout=_GRACE))
            # Tasks that ignored it have been reported as abandoned; asyncio need not report them again.
            loop.set_exception_handler(lambda loop, context: None)
            loop.run_until_complete(loop.shutdown_asyncgens())
            with self._lock:
                for waited in list(self._waited):
                    waited.cancel()
                loop.close()


class _RunningAsync:
    """A term whose coroutine is on its loop, and the thread that waits for it."""

    def __init__(self, pool: Async, task: Task) -> None:
        self.pool = pool
        self.name: str = task.term.name
        self.thread: RunningThread | None = None
        # JAX differentiates what happens in one thread: there, the coroutine runs in the thread that waits for it.
        self._here: bool = bool(task.wrt) and _uses_jax(task)
        self.lock: threading.Lock = threading.Lock()
        self._cancelled = False
        self._awaiting = False
        self._future: Future[Any] | None = None
        self._coroutine: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def wait(self, awaitable: Any) -> Any:
        """In the thread: wait for what the term returned."""
        with self.lock:
            self._awaiting = True
        if isinstance(awaitable, Future):
            return self._wait_for_future(cast("Future[Any]", awaitable))
        try:
            found = self._wait_for_coroutine(awaitable)
        finally:
            _close_unstarted(awaitable)
            # Its context refers to this object: the cycle would keep its graph until the garbage collector runs.
            self._coroutine = None
        if isinstance(found, _Ended):
            raise found.error
        return found

    def _wait_for_coroutine(self, awaitable: Any) -> Any:
        if self._here:
            return wait_here(self._noted(awaitable))
        loop = self.pool.take_loop(self.name)
        noted = self._noted(_InModes(awaitable, Modes()))
        try:
            return loop.wait(noted)
        finally:
            _close_unstarted(noted)
            self.pool.leave_loop(loop)

    def _wait_for_future(self, future: "Future[Any]") -> Any:
        with self.lock:
            self._future = future
            if self._cancelled:
                future.cancel()
        try:
            return future.result(self._left())
        except TimeoutError:
            # Of the future itself, or of the waiting, which ends here.
            future.cancel()
            raise

    async def _noted(self, awaitable: Any) -> Any:
        """Await it until it is late: then it is cancelled, here, whatever else this process is busy with."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "on a loop"
        with self.lock:
            self._coroutine = loop, task
            if self._cancelled:
                task.cancel()
        late = loop.call_later(self._left(), task.cancel)
        # What it raises refers to this frame.
        del task
        try:
            return await awaitable
        except (SystemExit, KeyboardInterrupt) as error:
            return _Ended(error)
        finally:
            late.cancel()

    def _left(self) -> float:
        assert self.thread is not None, "started"
        assert self.thread.started is not None, "begun"
        return max(0.0, self.thread.started + self.thread.timeout - time.monotonic())

    def result(self) -> Evaluation:
        """Wait until it is done or late."""
        thread = self.thread
        assert thread is not None, "started"
        try:
            return thread.result()
        except TermTimeoutError as late:
            if not self._awaiting:
                raise
            end = "was cancelled"
            if late.abandoned:
                end = "could not be cancelled, because it blocks or ignores cancellation: it still runs"
                self.pool.retire_loop(self.name)
            message = f"took more than {thread.timeout:g} s, and {end}"
            raise TermTimeoutError(thread.name, message, abandoned=late.abandoned) from None

    def cancel(self) -> None:
        """Cancel the coroutine; its thread ends when that does."""
        assert self.thread is not None, "started"
        with self.lock:
            self._cancelled = True
            if self._future is not None:
                self._future.cancel()
            if self._coroutine is not None:
                loop, task = self._coroutine
                # Closed meanwhile, with everything on it.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(task.cancel)
        self.thread.cancel()


def _close_unstarted(awaitable: Any) -> None:
    """Close a coroutine that never began, because the loop ended first: Python would warn that it was never awaited."""
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


def _uses_jax(task: Task) -> bool:
    return "jax" in sys.modules and any(
        isinstance(array, sys.modules["jax"].Array) for array in trees.arrays(list(task.inputs.values()))
    )
