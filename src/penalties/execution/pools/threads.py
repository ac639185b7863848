"""Terms in threads: for those that release the interpreter's lock and take over a millisecond."""

import contextlib
import contextvars
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ...errors import PenaltiesError, TermError, TermTimeoutError, said
from ...pipeline.awaitables import wait_by
from ...pipeline.evaluation import Evaluation
from ..awaiting import close_here, wait_here
from ..capturing import check_captures
from ..evaluating import evaluate_away
from ..task import Task

__all__ = ["RunningThread", "Threads"]

_ABANDONED: Final = 32
"""Threads that may hang at once before further terms are an error."""

_LOOK: Final = 0.05
"""Seconds between looks at a task that has not begun."""


class Threads:
    """Daemon threads that evaluate terms. One that is late is abandoned: it runs on, and another replaces it."""

    def __init__(self, max_workers: int, grace: float = 0.0) -> None:
        """Threads start as they are needed; a late one has so many seconds to end before it is abandoned."""
        self.max_workers = max_workers
        self.grace = grace
        self.closed: bool = False
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[RunningThread | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        """All of them, abandoned ones included."""
        self._alive = 0
        self._tasks = 0
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """How many threads run on although nothing waits for them."""
        return self._abandoned

    def start(self, task: Task, waiter: Callable[[Any], Any] = wait_here) -> "RunningThread":
        """Begin as soon as a thread is free."""
        running = RunningThread(self, task, waiter)
        with self._lock:
            if self.closed:
                raise TermError(task.term.name, "the executor is closed")
            if self._abandoned >= _ABANDONED:
                raise TermError(
                    task.term.name,
                    f"{self._abandoned} threads were abandoned and still run; a term that hangs belongs in a process, "
                    'where it can be killed: runs="process"',
                )
            self._tasks += 1
            self._queue.put(running)
            self._add_thread()
        return running

    def look_after(self, running: "RunningThread") -> None:
        """Raise if a task that has not begun never will."""
        with self._lock:
            self._add_thread()
            if not self._alive and running.started is None:
                raise TermError(running.name, "no thread could be started for it: the system allows no more")

    def _add_thread(self) -> None:
        """Start a thread if there are more tasks than threads, and the system allows it."""
        if self._alive < min(self._tasks, self.max_workers) and not self.closed:
            thread = threading.Thread(target=self._work, name="penalties-term", daemon=True)
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._alive += 1
                self._threads.add(thread)

    def _work(self) -> None:
        try:
            while self._run_next():
                pass
        finally:
            close_here()
            self._threads.discard(threading.current_thread())

    def _run_next(self) -> bool:
        """Run one task; False where this thread is to end."""
        running = self._queue.get()
        if running is None:
            with self._lock:
                self._alive -= 1
            return False
        running.run()
        with self._lock:
            running.finished = time.monotonic()
            abandoned = running.abandoned
            if abandoned:
                running.forget()
                self._abandoned -= 1
            else:
                self._tasks -= 1
        # Last: whoever is woken may start the next task, which then finds this thread free.
        running.done.set()
        return not abandoned

    def abandon(self, running: "RunningThread") -> bool:
        """Give up on a task that runs; False where it has finished meanwhile."""
        with self._lock:
            if running.finished is not None or running.abandoned:
                return running.abandoned
            running.abandoned = True
            self._abandoned += 1
            self._tasks -= 1
            self._alive -= 1
            self._add_thread()
        return True

    def close(self) -> None:
        """End every idle thread, and busy ones as soon as their term returns."""
        with self._lock:
            self.closed = True
            threads = list(self._threads)
            for _ in threads:
                self._queue.put(None)
        end = time.monotonic() + 1.0
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


class RunningThread:
    """A task for a thread."""

    def __init__(self, pool: Threads, task: Task, waiter: Callable[[Any], Any]) -> None:
        """Not begun yet; the waiter waits for what the term returns to be awaited."""
        self.pool = pool
        self.name: str = task.term.name
        self.timeout: float = task.timeout
        self.started: float | None = None
        self.finished: float | None = None
        self.abandoned: bool = False
        self.cancelled: bool = False
        self.done: threading.Event = threading.Event()
        self._work: tuple[Task, Callable[[Any], Any], contextvars.Context] | None
        self._work = (task, waiter, contextvars.copy_context())
        self._evaluation: Evaluation | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Evaluate the term, in a thread of the pool."""
        work, self._work = self._work, None
        # Not kept: inputs and graphs must not live until the garbage collector finds them.
        if not self.cancelled and work is not None:
            task, waiter, context = work
            self.started = time.monotonic()
            try:
                self._evaluation = context.run(_evaluated, task, waiter)
            except BaseException as error:
                self._error = error

    def result(self) -> Evaluation:
        """Wait until it is done or late."""
        # From when it began, which may be long ago: others were waited for before.
        while not self.done.wait(self._patience()):
            pass
        if self.cancelled or self.started is None or self.finished is None:
            raise TermError(self.name, "was cancelled")
        took = self.finished - self.started
        if took > self.timeout:
            self.forget()
            raise TermTimeoutError(self.name, f"took {took:.3g} s; expected at most {self.timeout:g} s")
        if self._error is not None:
            raise _as_term_error(self.name, self._error)
        evaluation, self._evaluation = self._evaluation, None
        assert evaluation is not None, "a result is read once"
        return evaluation

    def _patience(self) -> float:
        """Seconds to wait before the next look; raises where the task is late."""
        if self.started is None:
            if self.pool.closed:
                raise TermError(self.name, "the executor was closed before it began")
            self.pool.look_after(self)
            return _LOOK
        left = self.started + self.timeout + self.pool.grace - time.monotonic()
        if left <= 0 and self.pool.abandon(self):
            raise TermTimeoutError(
                self.name,
                f"took more than {self.timeout:g} s in a thread, which cannot be stopped: it was abandoned and is "
                "still running",
                abandoned=True,
            )
        # Where it has just finished, it says so in a moment.
        return max(left, _LOOK)

    def forget(self) -> None:
        """Let go of the result: it will not be read."""
        self._evaluation = self._error = None

    def cancel(self) -> None:
        """Never begin, or abandon it."""
        self.cancelled = True
        if self.started is not None:
            self.pool.abandon(self)
        self.done.set()


def _evaluated(task: Task, waiter: Callable[[Any], Any]) -> Evaluation:
    assert task.modes is not None, "captured for threads"
    # For this context, which ends with the task.
    wait_by(waiter)
    with task.modes():
        evaluation = evaluate_away(task.term, task.inputs, task.wrt, step=task.step, state=task.state)
        check_captures(task, evaluation)
    return evaluation


def _as_term_error(name: str, error: BaseException) -> BaseException:
    if isinstance(error, PenaltiesError):
        return error
    failed = TermError(name, f"raised {said(error)}")
    failed.__cause__ = error
    return failed
