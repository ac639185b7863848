"""One event loop a process, in its own thread, for requests that several terms make at once."""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

__all__ = ["closes_at_exit", "submit"]

T = TypeVar("T")

_ENDING: Final = 2.0
"""Seconds for open connections to be closed, when the program ends."""

_lock: Final = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_process = 0
_closing: Final[set[Callable[[], Coroutine[Any, Any, None]]]] = set()


def submit(coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
    """Start a coroutine on the loop; cancelling the future cancels it."""
    return asyncio.run_coroutine_threadsafe(coroutine, _running())


def closes_at_exit(close: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Have connections closed when the program ends; what this returns closes them now, without waiting."""
    _closing.add(close)
    process = os.getpid()

    def now() -> None:
        _closing.discard(close)
        if _loop is not None and not _loop.is_closed() and process == os.getpid():
            submit(close())

    return now


def _running() -> asyncio.AbstractEventLoop:
    global _loop, _thread, _process
    with _lock:
        # After a fork the thread is gone, and its connections are those of the parent.
        if _loop is None or _process != os.getpid():
            _closing.clear()
            _loop, _process = asyncio.new_event_loop(), os.getpid()
            _thread = threading.Thread(target=_run, args=(_loop,), name="penalties-validation", daemon=True)
            _thread.start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _close_all() -> None:
    await asyncio.gather(*(close() for close in _closing), return_exceptions=True)


@atexit.register
def _end() -> None:
    if _loop is None or _thread is None or _process != os.getpid():
        return
    try:
        asyncio.run_coroutine_threadsafe(_close_all(), _loop).result(_ENDING)
    except TimeoutError:
        # A daemon: it ends with the process.
        return
    _loop.call_soon_threadsafe(_loop.stop)
    _thread.join(_ENDING)
