"""Files that are there whole or not at all, and errors of the disk that say what to do."""

import contextlib
import errno
import os
import re
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Final

from ..errors import PenaltiesError, said

__all__ = ["RunError", "discard", "sync", "write_whole", "writing"]

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


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all, whatever happens meanwhile."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if sys.platform == "win32":
        # Folders cannot be opened there, and names are on the disk when the call returns.
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(folder: Path) -> None:
    """Remove a folder so that no half of it is ever seen under its name."""
    with contextlib.suppress(FileNotFoundError):
        gone = folder.with_name(f".{folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
