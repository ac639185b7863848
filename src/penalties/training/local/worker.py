"""The one thread that runs a client's operations, in the order of submission."""

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ..futures import TrainingFuture, settle

__all__ = ["Worker"]

T = TypeVar("T")

# How long an operation that still runs at exit is waited for: interrupted, native code may crash the process with an
# obscure message.
_AT_EXIT = 10.0


class Worker:
    """A daemon thread with a queue; it starts with the first operation, and ends when the worker is collected.

    >>> with Worker("example") as worker:
    ...     worker.submit(lambda: 6 * 7).result(timeout=1)
    42
    """

    def __init__(self, owner: str) -> None:
        """`owner` is for messages."""
        self._owner = owner
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._finalizer: Any = None
        self._process = os.getpid()

    def submit(self, operation: Callable[[], T]) -> TrainingFuture[T]:
        """Run an operation after all that were submitted before.

        Submitted by the worker's own thread, as from a callback of a future, it runs at once: the thread cannot wait
        for itself.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this {self._owner} belongs to the process that created it; create a new one in this fork"
            )
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"this {self._owner} is closed; create a new one")
            if self._thread is None:
                # The thread refers to the queue alone: a reference to the worker would keep it alive.
                self._thread = threading.Thread(
                    target=_work, args=(self._queue,), name=f"penalties-{self._owner}", daemon=True
                )
                self._thread.start()
                self._finalizer = weakref.finalize(self, _end, self._queue, self._thread)
            inside = threading.current_thread() is self._thread
            if not inside:
                self._queue.put((future, operation))
        if inside:
            settle(future, operation)
        return TrainingFuture(future)

    def close(self) -> None:
        """Finish all submitted operations, accept no more, and end the thread."""
        with self._lock:
            first = not self._closed
            self._closed = True
        if first and self._thread is not None:
            self._queue.put(None)
            self._finalizer.detach()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> "Worker":
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()


def _work(queue: "SimpleQueue[Any]") -> None:
    while (job := queue.get()) is not None:
        settle(*job)
        # A result may be large: while the thread waits, only its future refers to it.
        del job


def _end(queue: "SimpleQueue[Any]", thread: threading.Thread) -> None:
    """Cancel queued operations and wait for the running one: the worker was collected, or the program exits."""
    while True:
        try:
            job = queue.get_nowait()
        except Empty:
            break
        job[0].cancel()
    queue.put(None)
    # If the thread itself dropped the last reference, it ends on its own.
    if thread is not threading.current_thread():
        thread.join(_AT_EXIT)
