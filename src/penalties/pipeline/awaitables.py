"""Terms that return something to be awaited: an executor says how."""

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
    """Whether this is a coroutine, a future, or anything else that is awaited."""
    return hasattr(result, "__await__") or isinstance(result, Future)


def awaited(term: str, result: Any) -> Any:
    """What an awaitable gives, where somebody waits; a pipeline on its own does not."""
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
    """From now on in this context, terms that return an awaitable are waited for by this function."""
    _waiter.set(waiter)


@contextlib.contextmanager
def waiting(waiter: Callable[[Any], Any]) -> Generator[None]:
    """Inside, terms that return an awaitable are waited for by this function."""
    token = _waiter.set(waiter)
    try:
        yield
    finally:
        _waiter.reset(token)
