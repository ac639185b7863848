"""Futures: results that arrive later, from a client or from a thread started here."""

import asyncio
import inspect
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ..execution.background import start_thread

__all__ = ["TrainingFuture", "failed", "in_thread", "mapped", "resolve", "resolved", "result_of", "settle"]

T = TypeVar("T")
U = TypeVar("U")


class TrainingFuture(Generic[T]):
    """A result that arrives later: wait for it with `.result(timeout)`, or `await` it.

    >>> source = Future()
    >>> later = TrainingFuture(source).then(lambda number: 2 * number)
    >>> source.set_result(21)
    >>> later.result(timeout=1)
    42
    """

    def __init__(self, future: "Future[T]") -> None:
        """Wrap a future of `concurrent.futures`."""
        self._future = future

    @classmethod
    def of(cls, value: T) -> "TrainingFuture[T]":
        """A result that is there already.

        >>> TrainingFuture.of(3).result()
        3
        """
        return cls(resolved(value))

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result or the exception; raises `TimeoutError` after `timeout` seconds."""
        return self._future.result(timeout)

    async def result_async(self, timeout: float | None = None) -> T:
        """Wait without blocking the event loop. Cancelling the wait does not cancel the operation."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()

        def wake(done: "Future[T]") -> None:
            # The loop may be closed by now, and then nothing waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(arrived.set)

        self._future.add_done_callback(wake)
        async with asyncio.timeout(timeout):
            await arrived.wait()
        return self._future.result()

    def __await__(self) -> Generator[Any, Any, T]:
        """The result."""
        return self.result_async().__await__()

    def then(self, fn: Callable[[T], U]) -> "TrainingFuture[U]":
        """A future of `fn(result)`; `fn` runs once, in the thread that produces the result.

        An exception from the operation or from `fn` is raised by the new future.
        """
        return TrainingFuture(mapped(self._future, fn))

    def done(self) -> bool:
        """Whether the result is there."""
        return self._future.done()

    def future(self) -> "Future[T]":
        """The underlying future of `concurrent.futures`."""
        return self._future


def settle(future: "Future[T]", work: Callable[[], T]) -> None:
    """Set the result of `work()`, or what it raises, unless the future was cancelled."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)


def in_thread(work: Callable[[], T]) -> "Future[T]":
    """A future of `work()`, which runs in its own daemon thread."""
    future: Future[T] = Future()
    start_thread(lambda: settle(future, work), future, "penalties-future")
    return future


def resolve(futures: Mapping[str, "Future[Any]"], work: Callable[[], Mapping[str, Any]]) -> None:
    """Resolve several futures with the results of one function, by name; it runs in its own daemon thread."""

    def distribute(done: "Future[Mapping[str, Any]]") -> None:
        for name, future in futures.items():
            settle(future, lambda name=name: done.result()[name])

    in_thread(work).add_done_callback(distribute)


def mapped(future: "Future[T]", fn: Callable[[T], U]) -> "Future[U]":
    """A future of `fn(result)`; `fn` runs in the thread that produces the result."""
    changed: Future[U] = Future()
    future.add_done_callback(lambda done: settle(changed, lambda: fn(done.result())))
    return changed


def resolved(value: T) -> "Future[T]":
    """A future with its result already set."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def failed(error: BaseException) -> "Future[Any]":
    """A future with its exception already set."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def result_of(later: Any) -> Any:
    """Wait for any client's future: one with `.result()`, or an awaitable. Anything else is the result itself."""
    if callable(getattr(later, "result", None)):
        return later.result()
    return asyncio.run(_awaited(later)) if inspect.isawaitable(later) else later


async def _awaited(later: Any) -> Any:
    return await later
