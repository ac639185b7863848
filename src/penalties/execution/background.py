"""Daemon threads that have a result, and end before the interpreter does."""

import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

__all__ = ["start_thread"]

_ENDING: Final = 10.0
"""Seconds that a thread may take to let go of what it has worked with."""

_results: Final["weakref.WeakKeyDictionary[threading.Thread, Future[Any]]"] = weakref.WeakKeyDictionary()


def start_thread(work: Callable[[], None], result: "Future[Any]", name: str) -> None:
    """Run `work`, which sets the result. At exit only a thread whose result is there is waited for."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    _results[thread] = result
    thread.start()


@atexit.register
def _wait() -> None:
    # One that frees a graph while the interpreter ends would abort the process, in C++ code of PyTorch.
    for thread, result in list(_results.items()):
        if result.done():
            thread.join(_ENDING)
