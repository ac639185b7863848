"""The connection to Ray that the executors of this process share."""

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

from ...errors import MissingLibraryError

__all__ = ["Connection", "answered", "connection", "library"]

_STARTING: Final = 300.0
"""Seconds in which a cluster of our own has started, or another is connected."""

_ENDING: Final = 20.0
"""Seconds in which the connection ends, and a cluster of our own: one that was stopped does not."""

_Found = TypeVar("_Found")

_calls: Final[set["Future[Any]"]] = set()
"""Calls of Ray's functions that have not returned: one that the end of the connection overtakes never would."""


class Connection:
    """The caller's connection where there is one; else one of our own, which the last executor closes."""

    def __init__(self) -> None:
        """Not connected yet."""
        self._lock = threading.Lock()
        self._users: set[object] = set()
        self._thread: threading.Thread | None = None
        self._job = ""
        self._over = threading.Event()
        self._local = False

    def open(self, user: object, processors: int) -> bool:
        """Connect unless that is done; returns whether the cluster is one that was started here, for us alone."""
        ray = library()
        with self._lock:
            if ray.is_initialized() and _job() != self._job:
                # The caller's own.
                return False
            self._users.add(user)
            if not ray.is_initialized():
                self._end()
                self._begin(processors)
            return self._local

    def _begin(self, processors: int) -> None:
        address = os.environ.get("RAY_ADDRESS", "")
        self._local, self._over = not address, threading.Event()
        options: dict[str, Any] = {"address": address or "local", "log_to_driver": False}
        if self._local:
            options |= {"num_cpus": processors, "include_dashboard": False}
        connected: Future[None] = Future()
        # In a thread that lasts as long as the connection: what Ray starts ends with the thread that started it.
        self._thread = threading.Thread(
            target=_connected, args=(options, connected, self._over), name="penalties-ray-connection", daemon=True
        )
        self._thread.start()
        _waited(connected, _STARTING)
        self._job = _job()

    def _end(self) -> None:
        thread, self._thread, self._job = self._thread, None, ""
        if thread is not None:
            self._over.set()
            thread.join(_ENDING)

    def close(self, user: object) -> None:
        """The user needs it no longer."""
        with self._lock:
            if user in self._users:
                self._users.remove(user)
                if not self._users:
                    self._end()


connection: Final = Connection()


def _connected(options: dict[str, Any], connected: "Future[None]", over: threading.Event) -> None:
    ray = library()
    try:
        ray.init(**options, logging_level=logging.ERROR)
        job = _job()
    except BaseException as error:
        connected.set_exception(error)
        return
    connected.set_result(None)
    over.wait()
    wait(list(_calls), _STARTING)
    # The caller may have closed it, and made their own connection since.
    if ray.is_initialized() and _job() == job:
        ray.shutdown()


def answered(seconds: float, function: Callable[..., _Found], *arguments: Any) -> _Found:
    """What a function of Ray's returns that has no timeout itself; a `ConnectionError` where that takes longer."""
    found: Future[_Found] = Future()
    _calls.add(found)

    def call() -> None:
        try:
            found.set_result(function(*arguments))
        except BaseException as error:
            found.set_exception(error)
        finally:
            _calls.discard(found)

    threading.Thread(target=call, name="penalties-ray-call", daemon=True).start()
    return _waited(found, seconds)


def _waited(future: "Future[_Found]", seconds: float) -> _Found:
    # Not by `result` alone: what it raises may be a TimeoutError of the function's own.
    if not wait([future], seconds).done:
        raise ConnectionError(f"the cluster did not answer within {seconds:g} s")
    return future.result()


def _job() -> str:
    """Which cluster this process is connected to, and as which of its jobs."""
    context = library().get_runtime_context()
    return f"{context.get_node_id()} {context.get_job_id()}"


def library() -> Any:
    """Ray, or an error that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError('a term with runs="ray"', "ray", extra="ray") from error
    return ray
