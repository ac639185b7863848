"""Which calls are recorded, and where."""

import contextlib
import os
import re
from collections.abc import Generator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...errors import NonFiniteError, OptionError, TermError, said
from ...functional.options import check_count
from ..kinds import compiling
from .stored import Call, store

if TYPE_CHECKING:
    from ..output import LossOutput

__all__ = ["keep", "keep_skipped", "recording"]


class _Recorder:
    def __init__(self, folder: Path, max_bytes: int, limit: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.limit = limit
        self.written = 0


_active: Final[ContextVar[_Recorder | None]] = ContextVar("recording", default=None)


@contextlib.contextmanager
def recording(folder: str | os.PathLike[str], *, max_bytes: int = 2**30, limit: int = 10) -> Generator[None]:
    """Write every call inside in which a term fails to a separate folder, from which `replay` runs it again.

    A term fails if it raises, is late, loses its worker, or has a value that an executor finds not to be finite; also
    if it is skipped (`on_error="skip"`). The error says in a note where its call was recorded, or why it was not.

    - `folder`: where the folders go, one for each call, named after its step and its term.
    - `max_bytes`: a call with larger inputs and state is not recorded.
    - `limit`: after so many calls no more are recorded.

    >>> import tempfile
    >>> import numpy as np
    >>> import penalties as pn
    >>> def inverse(x):
    ...     return (1.0 / x).sum() if x.all() else 1 // 0
    >>> folder = tempfile.mkdtemp()
    >>> with pn.recording(folder):
    ...     try:
    ...         pn.Pipeline([inverse])(np.array([2.0, 0.0]), step=7)
    ...     except pn.TermError as error:
    ...         print(error, error.__notes__[0].startswith("recorded in "), sep="; ")
    inverse: raised ZeroDivisionError: integer division or modulo by zero; True
    >>> [path.name for path in Path(folder).iterdir()]
    ['step-7-inverse']
    """
    check_count("recording", "max_bytes", max_bytes, 1)
    check_count("recording", "limit", limit, 1)
    try:
        place = Path(folder).absolute()
    except TypeError as error:
        raise OptionError("recording", "folder", folder, "the path of a folder") from error
    token = _active.set(_Recorder(place, int(max_bytes), int(limit)))
    try:
        yield
    finally:
        _active.reset(token)


def keep(error: BaseException, call: Call) -> None:
    """Record a call that raised an error of a term, if this is wanted; never raises."""
    if compiling():
        return
    recorder = _active.get()
    if recorder is None or not isinstance(error, TermError | NonFiniteError):
        return
    if recorder.written >= recorder.limit:
        error.add_note(f"not recorded: {recorder.written} calls were; recording(limit={recorder.limit})")
        return
    try:
        path = store(error, call, _free(recorder.folder, error, call.step), recorder.max_bytes)
    except Exception as problem:
        # Whatever it is, the error of the term is what the caller has to see.
        error.add_note(f"not recorded: {said(problem)}")
        return
    recorder.written += 1
    error.add_note(f"recorded in {path}; penalties.replay({str(path)!r}) runs the call again")


def keep_skipped(output: "LossOutput", call: Call) -> None:
    """Record a call in which a term failed that may be."""
    if _active.get() is not None:
        for term in output.terms.values():
            if term.error is not None:
                keep(term.error, call)


def _free(folder: Path, error: TermError | NonFiniteError, step: Any) -> Path:
    """A path with nothing under it."""
    moment = "call" if step is None else f"step-{int(step)}"
    name = f"{moment}-{re.sub(r'[^A-Za-z0-9_.-]', '_', error.term or 'term')}"
    number, path = 1, folder / name
    while path.exists() or path.is_symlink():
        number += 1
        path = folder / f"{name}-{number}"
    return path
