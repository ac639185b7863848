"""Errors of the disk that say what to do, JSON files of a run, and folders that disappear as a whole."""

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from ...errors import PenaltiesError, said
from ...files import read_plain

__all__ = ["RunError", "discard", "read_object", "reason", "remove", "validated", "writing"]

_Kind = TypeVar("_Kind")

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
def writing(path: Path, option: str = "--run") -> Generator[None]:
    """Turn errors of the disk into a `RunError` that says what to do; other errors pass.

    `option` is that of the command which chooses another folder.
    """
    try:
        yield
    except Exception as error:
        number = _number(error)
        if number is None:
            raise
        if number in _FULL:
            raise RunError(f"{path} could not be written: the disk is full; free some space, then resume") from error
        if number in _CLOSED:
            raise RunError(
                f"{path} could not be written: {os.strerror(number).lower()}; make the folder writable, or choose "
                f"another with {option}"
            ) from error
        raise RunError(f"{path} could not be written: {reason(error)}") from error


def _number(error: Exception) -> int | None:
    """The errno of an exception, if it has one."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _NUMBER.search(str(error))
    return None if found is None else int(found[1])


def reason(error: Exception) -> str:
    """Why something failed, in a few words; the disk's own where it was the disk.

    >>> reason(FileNotFoundError(2, "No such file or directory", "lines.jsonl"))
    'no such file or directory'
    """
    words = error.strerror if isinstance(error, OSError) and error.strerror else ""
    return words[:1].lower() + words[1:] if words else said(error)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run; a `RunError` if it is anything else."""
    try:
        found = json.loads(read_plain(path))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {reason(error)}; restore the file") from error
    if not isinstance(found, dict):
        raise RunError(f"{path} is not a JSON object; restore the file")
    return cast("dict[str, Any]", found)


def validated(kind: type[_Kind], found: Any) -> _Kind:
    """Data of a file as an object of this class; a `ValueError` that names the first value of another type."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def discard(folder: Path) -> None:
    """Remove a folder, which disappears as a whole."""
    with contextlib.suppress(FileNotFoundError):
        gone = folder.with_name(f".{folder.name}.gone")
        remove(gone)
        folder.rename(gone)
        remove(gone)


def remove(path: Path) -> None:
    """Remove a folder as far as possible, or whatever else has this name."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
