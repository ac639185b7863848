"""Terms that return an awaitable: an executor says how to wait for it."""

import asyncio
import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Final

from ..errors import TermError, said

__all__ = ["awaited", "is_awaitable", "wait_by", "waiting"]

_waiter: Final[ContextVar[Callable[[Any], Any] | None]] = ContextVar("waiter", default=None)


def is_awaitable(result: Any) -> bool:
    """Whether this is a coroutine, a future, or anything else that can be awaited."""
    return hasattr(result, "__await__") or isinstance(result, Future)


def awaited(term: str, result: Any) -> Any:
    """The result of an awaitable, by the waiter of this context; without one it is an error."""
    waiter = _waiter.get()
    if waiter is None:
        if asyncio.iscoroutine(result):
            result.close()
        raise TermError(
            term, 'returned an awaitable; give it runs="async", and use an Executor: executor.run(pipeline, inputs)'
        )
    try:
        return waiter(result)
    except Exception as error:
        raise TermError(term, f"raised {said(error)}") from error


def wait_by(waiter: Callable[[Any], Any]) -> None:
    """Use this function to wait for awaitables that terms return, from now on in this context."""
    _waiter.set(waiter)


@contextlib.contextmanager
def waiting(waiter: Callable[[Any], Any]) -> Generator[None]:
    """Use this function to wait for awaitables that terms return, inside the block."""
    token = _waiter.set(waiter)
    try:
        yield
    finally:
        _waiter.reset(token)
