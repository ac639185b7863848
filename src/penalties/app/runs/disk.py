"""Errors of the disk that say what to do, and folders removed at once."""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Final

from ...errors import PenaltiesError, said

__all__ = ["RunError", "discard", "writing"]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_CLOSED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
# Libraries written in Rust, as safetensors is, have exceptions of their own, and the number in their text.
_NUMBER: Final = re.compile(r"\(os error (\d+)\)")


class RunError(PenaltiesError):
    """A run folder that cannot be used or written; `status` is what the program exits with."""

    def __init__(self, message: str, status: int = 1) -> None:
        """Keep the status beside the message: 2 where something else should have been asked for."""
        super().__init__(message)
        self.status = status


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Say in a `RunError` why this could not be written, and what to do; other errors pass."""
    try:
        yield
    except Exception as error:
        number = _number(error)
        if number is None:
            raise
        if number in _FULL:
            raise RunError(f"{path} could not be written: the disk is full; free some space, then resume") from error
        if number in _CLOSED:
            reason = os.strerror(number).lower()
            raise RunError(
                f"{path} could not be written: {reason}; make the folder writable, or choose another with --run"
            ) from error
        raise RunError(f"{path} could not be written: {said(error)}") from error


def _number(error: Exception) -> int | None:
    """The number of the system's error that this is, if it is one."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _NUMBER.search(str(error))
    return None if found is None else int(found[1])


def discard(folder: Path) -> None:
    """Remove a folder so that no half of it is ever seen under its name."""
    with contextlib.suppress(FileNotFoundError):
        gone = folder.with_name(f".{folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
