"""Errors that travel between processes as data, with their cause."""

import sys
import traceback
from typing import Any, Final, NamedTuple, cast

from ..errors import TermError, said
from .portable import dumps_data

__all__ = ["Failure"]

_DEEPEST: Final = 5
"""Groups of exceptions within each other that are kept."""


class Failure(NamedTuple):
    """An error of a term, and its cause: what it takes to make that again, and as text."""

    term: str
    message: str
    phase: str
    cause: tuple[Any, ...] | None
    shown: str

    @classmethod
    def of(cls, name: str, error: BaseException) -> "Failure":
        """What can be sent of an error that a term raised."""
        raised = error
        if not isinstance(raised, TermError):
            raised = TermError(name, f"raised {said(error)}")
            raised.__cause__ = error
        cause = raised.__cause__
        if cause is None:
            return cls(raised.term, raised.message, raised.phase, None, "")
        shown = "".join(traceback.format_exception(cause))
        return cls(raised.term, raised.message, raised.phase, _described(cause, _DEEPEST), shown)

    def error(self) -> TermError:
        """The error again, with its cause; a note on that shows the traceback from the worker."""
        raised = TermError(self.term, self.message, self.phase)
        if self.cause is not None:
            cause = _restored(self.cause) or RuntimeError("raised in a worker")
            # Not by its own method, which may be anything.
            BaseException.add_note(cause, f"where the term ran:\n{self.shown.rstrip()}")
            raised.__cause__ = cause
        return raised


def _described(error: Any, deepest: int) -> tuple[Any, ...]:
    """Its classes, arguments and attributes, as far as they are data."""
    own = cast("Any", type(error))
    classes = tuple((cls.__module__, cls.__qualname__) for cls in own.__mro__ if issubclass(cls, BaseException))
    within: list[tuple[Any, ...]] = []
    # Not its own way to be pickled, which may be anything; that of an OSError adds the name of the file.
    arguments = _builtin(own).__reduce__(error)[1]
    if not _is_data(arguments):
        arguments = (said(error).partition(": ")[2],)
    if isinstance(error, BaseExceptionGroup) and deepest:
        arguments = error.args[:1]
        within = [_described(one, deepest - 1) for one in cast("Any", error).exceptions]
    attributes = {name: value for name, value in vars(error).items() if _is_data(value)}
    if not isinstance(attributes.get("__notes__"), list):
        # A note cannot be added to anything else.
        attributes.pop("__notes__", None)
    return classes, arguments, within, attributes


def _restored(description: tuple[Any, ...]) -> BaseException | None:
    """The exception again, of the nearest of its classes that is loaded here; no code of that class runs."""
    classes, arguments, within, attributes = description
    if within:
        arguments = (*arguments, [_restored(one) or RuntimeError("raised in a worker") for one in within])
    for module, name in classes:
        cls: Any = sys.modules.get(module)
        for part in name.split("."):
            # Not by getattr: a module may have a function for that, and what a worker names runs nothing.
            cls = None if cls is None else cast("Any", vars(cls)).get(part)
        if not isinstance(cls, type) or not issubclass(cls, BaseException):
            continue
        builtin = _builtin(cls)
        try:
            error: Any = builtin.__new__(cls, *arguments)
            builtin.__init__(error, *arguments)
        except Exception:
            # A class that takes other arguments, as of an error about Unicode.
            continue
        error.__dict__.update(attributes)
        return error
    return None


def _builtin(cls: type) -> Any:
    """The nearest class that Python has itself."""
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


def _is_data(value: Any) -> bool:
    try:
        dumps_data(value)
    except Exception:
        return False
    return True
