"""Terms that raise."""

import asyncio
import os
import sys
import threading
from typing import Any

import penalties as pn

from .fault import ELSEWHERE, fault


class Unpicklable(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Particular(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Root(BaseException):
    pass


class Deadly(Exception):
    """Ends the process that reads it."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


@fault(pn.TermError, "raised Deadly: of its reader")
def raises_deadly(x: Any) -> Any:
    raise Deadly("of its reader")


@fault(pn.TermError, "raised ValueError: three")
def raises(x: Any) -> Any:
    raise ValueError("three")


@fault(pn.TermError, "raised Unpicklable: a lock")
def raises_unpicklable(x: Any) -> Any:
    raise Unpicklable("a lock")


@fault(pn.TermError, "raised Particular: 1 and 2")
def raises_particular(x: Any) -> Any:
    raise Particular(1, 2)


@fault(pn.TermError, "raised Particular")
def raises_inside_a_local_class(x: Any) -> Any:
    class Local(Particular):
        pass

    Local.__name__ = "Particular"
    raise Local(x.sum(), lambda: 2)


@fault(pn.TermError, "raised Speechless")
def raises_speechless(x: Any) -> Any:
    raise Speechless


@fault(pn.TermError, "raised StopIteration", where=("inline", "thread", "process"))
def raises_stop_iteration(x: Any) -> Any:
    return next(iter(()))


@fault(pn.TermError, "raised StopAsyncIteration")
def raises_stop_async_iteration(x: Any) -> Any:
    raise StopAsyncIteration


@fault(pn.TermError, "raised MemoryError")
def raises_memory_error(x: Any) -> Any:
    raise MemoryError


@fault(pn.TermError, "raised RecursionError")
def recurses(x: Any) -> Any:
    return recurses(x)


@fault(pn.TermError, "raised ExceptionGroup")
def raises_group(x: Any) -> Any:
    raise ExceptionGroup("several", [ValueError(1), Unpicklable("two")])


@fault(pn.TermError, "raised TimeoutError")
def raises_timeout(x: Any) -> Any:
    raise TimeoutError("of its own")


@fault(pn.TermError, "raised RuntimeError: the pool is closed")
def raises_like_a_pool(x: Any) -> Any:
    raise RuntimeError("the pool is closed")


@fault(pn.TermError, "raised BrokenPipeError")
def raises_like_a_pipe(x: Any) -> Any:
    raise BrokenPipeError(32, "broken")


@fault(pn.TermError, "raised Particular: 1 and 2")
def raises_with_a_long_cause(x: Any) -> Any:
    try:
        raises_unpicklable(x)
    except Unpicklable as error:
        raise Particular(1, 2) from error


@fault(pn.TermError, "raised NonFiniteError")
def raises_non_finite(x: Any) -> Any:
    raise pn.NonFiniteError("nan", "found elsewhere")


@fault(pn.TermError, "no such key", where=ELSEWHERE)
def raises_input_error(x: Any) -> Any:
    raise pn.InputError("no such key")


@fault(pn.TermError, "raised SystemExit", where=ELSEWHERE)
def leaves(x: Any) -> Any:
    sys.exit(3)


@fault(pn.TermError, "raised KeyboardInterrupt", where=ELSEWHERE)
def interrupts(x: Any) -> Any:
    raise KeyboardInterrupt


@fault(pn.TermError, "raised GeneratorExit", where=ELSEWHERE)
def raises_generator_exit(x: Any) -> Any:
    raise GeneratorExit


@fault(pn.TermError, "CancelledError", where=ELSEWHERE)
def cancels_itself(x: Any) -> Any:
    raise asyncio.CancelledError


@fault(pn.TermError, "raised Root", where=ELSEWHERE)
def raises_root(x: Any) -> Any:
    raise Root("of all")
