"""What pools of workers outside this process have in common: a queue, and for each worker a thread that serves it."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from typing import Any, Final

from ... import trees
from ...errors import TermError, WorkerLostError, said
from ...pipeline.evaluation import Evaluation
from ..functions import Function, Functions
from ..portable import Packed
from ..remote import Request, opened, request_of
from ..task import Task

__all__ = ["LOADING", "RemoteTask", "Worker", "WorkerPool", "reason_of"]

LOADING: Final = 300.0
"""Seconds that a worker may take to start and to load a function: imports can be slow, but must not hang the caller."""

_ENDING: Final = 60.0
"""Seconds that closing waits for a thread: what the worker runs on may be starting in it."""

_CLOSED: Final = "the executor was closed before it finished"


class WorkerPool(ABC):
    """Workers that start as they are needed. One that is late or lost is replaced, and its neighbours live on."""

    def __init__(self, max_workers: int) -> None:
        """Nothing starts before the first term."""
        self.max_workers = max_workers
        self.most: int = max_workers
        """Workers that there may be at once."""
        self.closed: bool = False
        self.changed: threading.Condition = threading.Condition()
        self._functions = Functions()
        self._waiting: deque[RemoteTask] = deque()
        self._workers: list[Worker] = []

    @abstractmethod
    def new_worker(self) -> "Worker":
        """A worker that has not started."""
        ...

    @abstractmethod
    def why_none(self, error: Exception) -> str:
        """The message where no worker can be started."""
        ...

    def start(self, task: Task) -> "RemoteTask":
        """Queue it; it begins as soon as a worker is free."""
        running = RemoteTask(self, task, self._functions)
        with self.changed:
            if self.closed:
                raise TermError(task.term.name, "the executor is closed")
            self._waiting.append(running)
            self.add_workers()
            self.changed.notify()
        return running

    def add_workers(self) -> None:
        """Start workers if there are more tasks than workers."""
        busy = sum(worker.running is not None for worker in self._workers)
        while len(self._workers) < min(busy + len(self._waiting), self.most):
            worker = self.new_worker()
            try:
                worker.thread.start()
            except RuntimeError as error:
                if not self._workers:
                    self._fail_waiting(error)
                return
            self._workers.append(worker)

    def take(self, worker: "Worker") -> "RemoteTask | None":
        """The next task for a worker that is alive; None at the end."""
        with self.changed:
            while worker.alive and not self._waiting and not self.closed:
                self.changed.wait()
            if self.closed or not worker.alive:
                return None
            worker.running = self._waiting.popleft()
            return worker.running

    def requeue(self, running: "RemoteTask") -> None:
        """Queue a task once more, before the others."""
        with self.changed:
            if self.closed:
                running.fail(TermError(running.name, _CLOSED))
            elif not running.done:
                self._waiting.appendleft(running)
                self.changed.notify()

    def forget(self, running: "RemoteTask") -> None:
        """Never begin a task that waits; kill the worker of one that runs."""
        with self.changed:
            if running in self._waiting:
                self._waiting.remove(running)
            for worker in self._workers:
                if worker.running is running:
                    worker.kill()

    def leave(self, worker: "Worker", error: Exception | None) -> None:
        """A worker ends. If it was the last, and could not start, so do the tasks that wait."""
        with self.changed:
            self._workers.remove(worker)
            if error is not None and not self._workers:
                self._fail_waiting(error)

    def _fail_waiting(self, error: Exception) -> None:
        """There is no worker, and there will be none."""
        with self.changed:
            waiting = list(self._waiting)
            self._waiting.clear()
        for running in waiting:
            running.fail(WorkerLostError(running.name, self.why_none(error)), error)

    def close(self) -> None:
        """Kill every worker, and end their threads."""
        with self.changed:
            self.closed = True
            workers = list(self._workers)
            unfinished = [*self._waiting, *(worker.running for worker in workers if worker.running is not None)]
            self._waiting.clear()
            for worker in workers:
                worker.kill()
            self.changed.notify_all()
        for running in unfinished:
            running.fail(TermError(running.name, _CLOSED))
        for worker in workers:
            # The garbage collector may close a forgotten executor in any thread.
            if worker.thread is not threading.current_thread():
                worker.thread.join(_ENDING)


class Worker(ABC):
    """A worker, and the thread that sends it tasks and waits for it.

    It takes a task once it is alive: a worker that there is no room for keeps no task waiting.
    """

    def __init__(self, pool: WorkerPool, name: str) -> None:
        """The thread, of this name, has not started."""
        self.pool = pool
        self.alive: bool = False
        self.used: bool = False
        """Whether it has evaluated a term: it may have died since, through no fault of the next."""
        self.running: RemoteTask | None = None
        self.thread: threading.Thread = threading.Thread(target=self._work, name=name, daemon=True)

    @abstractmethod
    def connect(self) -> None:
        """Wait for a worker that is alive; raises where there will be none."""
        ...

    @abstractmethod
    def evaluate(self, running: "RemoteTask") -> None:
        """Have a task evaluated, and settle it."""
        ...

    @abstractmethod
    def kill(self) -> None:
        """End the worker, whatever it does; called by any thread."""
        ...

    def end(self) -> None:
        """Let go of everything, at the end of the thread."""
        self.kill()

    def _evaluate(self, running: "RemoteTask") -> None:
        try:
            self.evaluate(running)
        except Exception as error:
            self.kill()
            running.fail(TermError(running.name, f"could not be evaluated in a worker: {said(error)}"), error)

    def _work(self) -> None:
        failure: Exception | None = None
        try:
            while not self.pool.closed:
                if not self.alive:
                    self.used = False
                    self.connect()
                running = self.pool.take(self)
                if running is not None:
                    self._evaluate(running)
                # Inputs and graphs must not live on here.
                self.running = running = None
        except Exception as error:
            failure = error
        try:
            self.end()
        finally:
            self.pool.leave(self, failure)


class RemoteTask:
    """A task for a worker."""

    def __init__(self, pool: WorkerPool, task: Task, functions: Functions) -> None:
        """Pack it."""
        self.pool = pool
        self.name: str = task.term.name
        self.timeout: float = task.timeout
        self.idempotent: bool = task.term.idempotent
        self.function: Function = functions.of(task.term)
        request, packed = request_of(task, self.function.digest)
        self.request: Request = request
        self.packed: Packed = packed
        self.gradient_bytes: int = sum(array.nbytes for name in task.wrt for array in trees.arrays(task.inputs[name]))
        """How large its gradient may be."""
        self._retried = False
        self._reply: Future[tuple[bytes, list[Any]]] = Future()

    @property
    def done(self) -> bool:
        """Whether it has a result, or failed, or was cancelled."""
        return self._reply.done()

    def result(self) -> Evaluation:
        """Wait until it is done, late or lost."""
        return opened(self.name, *self._reply.result())

    def cancel(self) -> None:
        """Kill its worker, or never begin."""
        with self.pool.changed:
            if not self.done:
                self.fail(TermError(self.name, "was cancelled"))
                self.pool.forget(self)

    def settle(self, data: bytes, arrays: list[Any]) -> None:
        """It has a result, in arrays of its own."""
        with self.pool.changed:
            if not self.done:
                self._reply.set_result((data, arrays))

    def fail(self, error: TermError, cause: BaseException | None = None) -> None:
        """It will have no result."""
        error.__cause__ = cause
        with self.pool.changed:
            if not self.done:
                self._reply.set_exception(error)

    def lose(self, how: str, *, began: bool, counts: bool = True, cause: Exception | None = None) -> None:
        """Its worker is gone: queue it again, once and where that does no harm; else fail."""
        again_harms = self._retried or (began and not self.idempotent)
        if counts and again_harms and not self.pool.closed:
            again = " twice" if self._retried else ""
            hint = "" if self.idempotent else "; idempotent=True lets it run again"
            reason = "" if cause is None else f": {reason_of(cause)}"
            self.fail(WorkerLostError(self.name, f"{how}{again}{reason}{hint}"), cause)
        else:
            self._retried |= counts
            self.pool.requeue(self)


def reason_of(error: Exception) -> str:
    """The sentence of an error, or of Ray's report, that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].split(". ")[0].rstrip(".") if lines else type(error).__name__
