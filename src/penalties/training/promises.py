"""Promises: results that a thread of our own computes, or changes, when they are there."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["failed", "fulfil", "promise", "ready", "then"]

T = TypeVar("T")


def promise(work: Callable[[], T]) -> "Future[T]":
    """What a function will give, computed in a thread of its own that ends with it and keeps nothing alive."""
    promised: Future[T] = Future()

    def run() -> None:
        if not promised.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            promised.set_exception(error)
        else:
            promised.set_result(result)

    threading.Thread(target=run, name="penalties-promise", daemon=True).start()
    return promised


def fulfil(promised: Mapping[str, "Future[Any]"], work: Callable[[], Mapping[str, Any]]) -> None:
    """Keep several promises with what one function gives, in a thread of its own."""

    def keep(done: "Future[Mapping[str, Any]]") -> None:
        error = done.exception()
        for name, one in promised.items():
            if error is not None:
                one.set_exception(error)
            else:
                one.set_result(done.result()[name])

    promise(work).add_done_callback(keep)


def then(promised: "Future[Any]", change: Callable[[Any], Any]) -> "Future[Any]":
    """What a promise gives, changed."""
    changed: Future[Any] = Future()

    def keep(done: "Future[Any]") -> None:
        try:
            changed.set_result(change(done.result()))
        except BaseException as error:
            changed.set_exception(error)

    promised.add_done_callback(keep)
    return changed


def ready(value: T) -> "Future[T]":
    """A promise that is kept already."""
    promised: Future[T] = Future()
    promised.set_result(value)
    return promised


def failed(error: BaseException) -> "Future[Any]":
    """A promise that is broken already."""
    promised: Future[Any] = Future()
    promised.set_exception(error)
    return promised
