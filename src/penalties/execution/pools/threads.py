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

__all__ = ["Threads"]

_ABANDONED: Final = 32
"""Threads that may hang at once before further terms are refused."""

_LOOK: Final = 0.05
"""Seconds between looks at a task that has not begun."""


class Threads:
    """Daemon threads that evaluate terms. One that is late is abandoned: it runs on, and another takes its place."""

    def __init__(self, max_workers: int) -> None:
        """Threads start as they are needed."""
        self.max_workers = max_workers
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[RunningThread | None] = queue.SimpleQueue()
        self._alive = 0
        self._busy = 0
        self._threads: set[threading.Thread] = set()
        self._abandoned = 0
        self.closed: bool = False

    @property
    def abandoned(self) -> int:
        """How many threads run on although nobody waits for them."""
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
            self._busy += 1
            self._queue.put(running)
            self._fill()
        return running

    def _fill(self) -> None:
        """Start a thread if there is more to do than there are."""
        if self._alive < min(self._busy, self.max_workers):
            self._alive += 1
            thread = threading.Thread(target=self._work, name="penalties-term", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        try:
            self._serve()
        finally:
            close_here()

    def _serve(self) -> None:
        while True:
            running = self._queue.get()
            if running is None:
                break
            running.run()
            with self._lock:
                running.finished = time.monotonic()
                left = running.left
                if left:
                    running.forget()
                    self._abandoned -= 1
                    self._threads.discard(threading.current_thread())
                else:
                    self._busy -= 1
            # Announced last: who is told may start the next one, which then finds this thread free.
            running.done.set()
            if left:
                return
            # Nothing of a task outlives it here.
            del running
        with self._lock:
            self._alive -= 1
            self._threads.discard(threading.current_thread())

    def leave(self, running: "RunningThread") -> bool:
        """Abandon the thread that this runs in, unless it has finished by now; the next task gets a new one."""
        with self._lock:
            if running.finished is not None or running.left:
                return running.left
            running.left = True
            self._abandoned += 1
            self._busy -= 1
            self._alive -= 1
            self._fill()
        return True

    def close(self) -> None:
        """End every thread that is not busy, and those that are as soon as their term gives back."""
        with self._lock:
            self.closed = True
            threads = list(self._threads)
            for _ in threads:
                self._queue.put(None)
        end = time.monotonic() + 1.0
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


class _Done:
    """An event of one lock, where `threading.Event` has three: a third of handing over between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def wait(self, timeout: float = -1) -> bool:
        if not self._lock.acquire(timeout=timeout):
            return False
        self._lock.release()
        return True


class RunningThread:
    """A task in a thread."""

    def __init__(self, place: Threads, task: Task, waiter: Callable[[Any], Any]) -> None:
        """Not begun yet."""
        self.place = place
        self.task: Task | None = task
        self.name: str = task.term.name
        self.timeout: float = task.timeout
        self.waiter: Any = waiter
        self.context: contextvars.Context | None = contextvars.copy_context()
        self.started: float | None = None
        self.finished: float | None = None
        self.left = False
        self.cancelled: bool = False
        self.done: _Done = _Done()
        self._evaluation: Evaluation | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Evaluate the term, in the thread of the place."""
        task, context = self.task, self.context
        assert task is not None, "run once"
        assert context is not None, "run once"
        if not self.cancelled:
            self.started = time.monotonic()
            try:
                self._evaluation = context.run(self._evaluated, task)
            except BaseException as error:
                self._error = error
        # Inputs and graphs are not kept alive by who only waits for the result, nor by who waits for a coroutine of it,
        # who holds this: in a circle they would live until Python looks for those.
        self.task = self.context = self.waiter = None

    def _evaluated(self, task: Task) -> Evaluation:
        assert task.modes is not None, "captured for threads"
        return task.modes.run(self._in_modes, task)

    def _in_modes(self, task: Task) -> Evaluation:
        # In a context of its own, which ends with the task.
        wait_by(self.waiter)
        evaluation = evaluate_away(task.term, task.inputs, task.wrt, step=task.step, state=task.state)
        check_captures(task, evaluation)
        return evaluation

    def result(self) -> Evaluation:
        """Wait until it is done or late."""
        patience = self.timeout
        while not self.done.wait(patience):
            if self.started is not None:
                patience = self.started + self.timeout - time.monotonic()
                if patience <= 0:
                    self._late()
                    patience = 0.0
            else:
                patience = _LOOK
                if self.place.closed:
                    raise TermError(self.name, "the executor was closed before it began")
        if self.cancelled or self.started is None or self.finished is None:
            raise TermError(self.name, "was cancelled")
        if self.finished - self.started > self.timeout:
            took = self.finished - self.started
            raise TermTimeoutError(self.name, f"took {took:.3g} s; expected at most {self.timeout:g} s")
        if self._error is not None:
            raise _as_term_error(self.name, self._error)
        evaluation, self._evaluation = self._evaluation, None
        assert evaluation is not None, "it ended without an error, and is asked for once"
        return evaluation

    def forget(self) -> None:
        """Let go of what came of it: nobody will ask."""
        self._evaluation = self._error = None

    def _late(self) -> None:
        if not self.place.leave(self):
            self.done.wait()
            return
        raise TermTimeoutError(
            self.name,
            f"took more than {self.timeout:g} s in a thread, which cannot be stopped: it was abandoned and runs on",
            abandoned=True,
        )

    def cancel(self) -> None:
        """Never begin it, or let it run on unheard."""
        self.cancelled = True
        if self.started is not None:
            self.place.leave(self)
        self.done.set()


def _as_term_error(name: str, error: BaseException) -> BaseException:
    if isinstance(error, PenaltiesError):
        return error
    failed = TermError(name, f"raised {said(error)}")
    failed.__cause__ = error
    return failed
