"""Errors of the disk that say what to do, and folders that disappear as a whole."""

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
# Libraries in Rust, such as safetensors, raise their own exceptions, with the number in the text.
_NUMBER: Final = re.compile(r"\(os error (\d+)\)")


class RunError(PenaltiesError):
    """A run folder that cannot be used or written; `status` is the exit status of the program."""

    def __init__(self, message: str, status: int = 1) -> None:
        """Keep the exit status beside the message: 2 if the command or config was wrong."""
        super().__init__(message)
        self.status = status


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn errors of the disk into a `RunError` that says what to do; other errors pass."""
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
    """The errno of an exception, if it has one."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _NUMBER.search(str(error))
    return None if found is None else int(found[1])


def discard(folder: Path) -> None:
    """Remove a folder, which disappears as a whole."""
    with contextlib.suppress(FileNotFoundError):
        gone = folder.with_name(f".{folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
