"""Awaiting what a term returned, in the thread that evaluates it."""

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, cast

from .background import start_thread

__all__ = ["close_here", "wait_here"]


class _Here(threading.local):
    """Each thread's event loop: kept, since a client of a service belongs to one loop."""

    runner: asyncio.Runner | None = None


_here = _Here()


def wait_here(awaitable: Any) -> Any:
    """The result of an awaitable or a future, on a loop of this thread."""
    if isinstance(awaitable, Future):
        return cast("Future[Any]", awaitable).result()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _here.runner = _here.runner or asyncio.Runner()
        return _here.runner.run(_awaited(awaitable))
    # A loop runs in this very thread, as in a notebook.
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(asyncio.run(_awaited(awaitable)))
        except BaseException as error:
            found.set_exception(error)

    start_thread(run, found, "penalties-await")
    return found.result()


def close_here() -> None:
    """End the loop of this thread, if it has one."""
    if _here.runner is not None:
        _here.runner.close()
        _here.runner = None


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
