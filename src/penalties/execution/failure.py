"""Errors that travel between processes, with their cause."""

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from ..errors import PenaltiesError, TermError, said
from .portable import dumps

__all__ = ["Failure"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of ours, and its cause: as an object where that can be pickled, and as text."""

    raised: PenaltiesError
    cause: bytes | None
    shown: str

    @classmethod
    def of(cls, name: str, error: BaseException) -> "Failure":
        """What can be sent of an error that a term raised."""
        raised = error
        if not isinstance(raised, PenaltiesError):
            raised = TermError(name, f"raised {said(error)}")
            raised.__cause__ = error
        cause = raised.__cause__
        if cause is None:
            return cls(raised, None, "")
        try:
            sent = dumps(cause).data
        except Exception:
            sent = None
        return cls(raised, sent, "".join(traceback.format_exception(cause)))

    def error(self) -> PenaltiesError:
        """The error again, with its cause; a note on that shows the traceback from the worker."""
        cause: Any = None
        if self.cause is not None:
            try:
                cause = pickle.loads(self.cause)
            except Exception:
                # Its class may not exist here, or may not be constructible from its arguments.
                cause = None
        if not isinstance(cause, BaseException):
            cause = RuntimeError("raised in a worker") if self.shown else None
        if cause is not None:
            cause.add_note(f"where the term ran:\n{self.shown.rstrip()}")
        self.raised.__cause__ = cause
        return self.raised
