"""The one thread that does a client's operations, in the order in which they were asked for."""

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ..futures import TrainingFuture

__all__ = ["Worker"]

T = TypeVar("T")

# An operation that still runs when the program ends is waited for this long: ended in the midst of it, native code
# may bring the whole process down with a message that says nothing.
_AT_EXIT = 10.0


class Worker:
    """A daemon thread with a queue; it starts with the first operation, and ends when the worker is forgotten.

    >>> with Worker("example") as worker:
    ...     worker.submit(lambda: 6 * 7).result(timeout=1)
    42
    """

    def __init__(self, owner: str) -> None:
        """Say whose it is, for messages."""
        self._owner = owner
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._finalizer: Any = None
        self._process = os.getpid()

    def submit(self, operation: Callable[[], T]) -> TrainingFuture[T]:
        """Do an operation after all that were submitted before.

        Asked for by the thread itself, as from a callback of a future, it is done at once: the thread cannot wait for
        itself.
        """
        if os.getpid() != self._process:
            raise RuntimeError(f"this {self._owner} belongs to the process that made it; make a new one in this fork")
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"this {self._owner} is closed; make a new one")
            if self._thread is None:
                # The thread knows the queue alone: one that knew the worker would keep it alive.
                self._thread = threading.Thread(
                    target=_work, args=(self._queue,), name=f"penalties-{self._owner}", daemon=True
                )
                self._thread.start()
                self._finalizer = weakref.finalize(self, _end, self._queue, self._thread)
            inside = threading.current_thread() is self._thread
            if not inside:
                self._queue.put((future, operation))
        if inside:
            _do(future, operation)
        return TrainingFuture(future)

    def close(self) -> None:
        """Finish what was submitted, take nothing more, and end the thread."""
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
        _do(*job)
        # What an operation gave may be large: it is its future's alone while the thread waits for the next.
        del job


def _do(future: "Future[Any]", operation: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = operation()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _end(queue: "SimpleQueue[Any]", thread: threading.Thread) -> None:
    """Drop what waits, and wait for what runs: the worker was forgotten, or the program ends."""
    while True:
        try:
            job = queue.get_nowait()
        except Empty:
            break
        job[0].cancel()
    queue.put(None)
    # Forgotten by what the thread itself let go of, it ends by itself.
    if thread is not threading.current_thread():
        thread.join(_AT_EXIT)
