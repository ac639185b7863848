"""What a client gives at once for a result that comes later."""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

__all__ = ["TrainingFuture"]

T = TypeVar("T")
U = TypeVar("U")


class TrainingFuture(Generic[T]):
    """A result to come: wait for it with `.result(timeout)`, or `await` it.

    >>> source = Future()
    >>> later = TrainingFuture(source).then(lambda number: 2 * number)
    >>> source.set_result(21)
    >>> later.result(timeout=1)
    42
    """

    def __init__(self, future: "Future[T]") -> None:
        """From a future of `concurrent.futures`."""
        self._future = future

    @classmethod
    def of(cls, value: T) -> "TrainingFuture[T]":
        """A result that is there already.

        >>> TrainingFuture.of(3).result()
        3
        """
        future: Future[T] = Future()
        future.set_result(value)
        return cls(future)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, and raise what was raised instead; `TimeoutError` past that many seconds."""
        return self._future.result(timeout)

    async def result_async(self, timeout: float | None = None) -> T:
        """Wait without blocking the event loop; whoever stops waiting stops nothing else."""
        import asyncio

        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()

        def tell(done: "Future[T]") -> None:
            # Where the loop is closed nobody waits any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(arrived.set)

        self._future.add_done_callback(tell)
        async with asyncio.timeout(timeout):
            await arrived.wait()
        return self._future.result()

    def __await__(self) -> Generator[Any, Any, T]:
        """The result."""
        return self.result_async().__await__()

    def then(self, fn: Callable[[T], U]) -> "TrainingFuture[U]":
        """What a function makes of the result; it runs once, in the thread that brings the result.

        What was raised instead of the result, or by the function, is raised by the new future.
        """
        changed: Future[U] = Future()

        def change(done: "Future[T]") -> None:
            try:
                made = fn(done.result())
            except BaseException as error:
                changed.set_exception(error)
            else:
                changed.set_result(made)

        self._future.add_done_callback(change)
        return TrainingFuture(changed)

    def done(self) -> bool:
        """Whether the result is there."""
        return self._future.done()

    def future(self) -> "Future[T]":
        """The future of `concurrent.futures` that it was made from."""
        return self._future
