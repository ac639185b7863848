"""Atomic writes, of which readers see the old content or the new, never a part of either; and the end of a log."""

import contextlib
import os
import secrets
import sys
from collections.abc import Generator
from pathlib import Path

__all__ = ["end_of_lines", "replaced", "sync", "write_atomically"]


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file as a whole: on any failure the old file stays as it was, and nothing else is left behind.

    Text is encoded as UTF-8. The data are on the disk when the call returns.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "notes.txt")
    >>> write_atomically(path, "first")
    >>> write_atomically(path, "second")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('second', 1)
    """
    with replaced(path) as part:
        part.write_bytes(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Generator[Path]:
    """A temporary path in the same folder, for the block to write; it replaces `path` when the block succeeds.

    For libraries that write files themselves. If the block raises, the temporary file is removed and `path` is
    untouched. The temporary file is hidden: `.{name}.{random}.part`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "notes.txt")
    >>> with replaced(path) as part:
    ...     _ = part.write_text("done")
    >>> path.read_text()
    'done'
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        sync(part)
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(target.parent)


def end_of_lines(path: Path) -> int:
    """The size of a file up to its last newline: what follows is an incomplete line."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    windows = sys.platform == "win32"
    if windows and Path(path).is_dir():
        return  # a folder cannot be opened there
    # Windows flushes only what is open for writing; elsewhere a folder can be opened for reading alone.
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
