"""Files that are opened by their own name only, and atomic writes of files and folders: readers see the old or the new.

In a folder that came from elsewhere, a name may be that of a link, whose target would be overwritten, or of a pipe, on
which a reader would wait for ever.
"""

import contextlib
import errno
import glob
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Final

__all__ = [
    "check_plain",
    "end_of_lines",
    "moved_aside",
    "new_folder",
    "open_plain",
    "read_plain",
    "replaced",
    "sync",
    "write_atomically",
]

_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def check_plain(path: str | os.PathLike[str], *, folder: bool = False) -> None:
    """Raise an OSError if there is anything but a file, or a folder, under this name: a link is neither.

    >>> check_plain(os.devnull)
    Traceback (most recent call last):
    OSError: [Errno 22] it is a device; expected a file: '/dev/null'
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = stat.S_IFMT(os.lstat(path).st_mode)
        expected = stat.S_IFDIR if folder else stat.S_IFREG
        if found != expected:
            what = f"it is {_KINDS.get(found, 'a file')}; expected a {'folder' if folder else 'file'}"
            raise OSError(errno.EINVAL, what, os.fspath(path))


def open_plain(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """A descriptor of the file that has this very name; see `check_plain`. Opening it never waits."""
    check_plain(path)
    # The name may get another meaning between the check and the opening. Windows has neither flag; there a descriptor
    # would turn \n into \r\n.
    extra = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    descriptor = os.open(path, flags | sum(extra), 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        check_plain(path)
        raise OSError(errno.EINVAL, "it is not a file any more", os.fspath(path))
    return descriptor


def read_plain(path: str | os.PathLike[str]) -> bytes:
    """The content of the file that has this very name."""
    with open(open_plain(path), "rb") as file:
        return file.read()


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
    with replaced(path) as part, part.open("r+b") as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Generator[Path]:
    """A new temporary file in the same folder, for the block to write; it replaces `path` when the block succeeds.

    For libraries that write files themselves. If the block raises, the temporary file is removed and `path` is
    untouched. A link is replaced, not followed. The temporary file is hidden: `.{name}.{random}.part`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "notes.txt")
    >>> with replaced(path) as part:
    ...     _ = part.write_text("done")
    >>> path.read_text()
    'done'
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    os.close(open_plain(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        yield part
        sync(part)
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(target.parent)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str], *, overwrite: bool = False) -> Generator[Path]:
    """A new temporary folder beside `path`, for the block to fill; it becomes `path` when the block succeeds.

    What is in it is on the disk by then. If the block raises, the temporary folder is removed and `path` is untouched.
    An empty folder under this name is replaced; anything else is an OSError, or with `overwrite` is replaced. What
    killed programs left behind of this folder is removed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "notes")
    >>> with new_folder(path) as part:
    ...     _ = (part / "first").write_text("done")
    >>> [one.name for one in path.parent.iterdir()], [one.name for one in path.iterdir()]
    (['notes'], ['first'])
    """
    target = Path(path).absolute()  # "." has no name beside which another could be made
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    part.mkdir()
    try:
        yield part
        for one in sorted(part.rglob("*"), reverse=True):
            sync(one)
        sync(part)
        _put(part, target, overwrite=overwrite)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync(target.parent)
    for kind in ("part", "old"):
        for left in _left_behind(target, kind):
            shutil.rmtree(left, ignore_errors=True)


def moved_aside(path: str | os.PathLike[str]) -> Path | None:
    """The old content of a folder that is absent because the program that replaced it was killed at that moment."""
    target = Path(path).absolute()
    return None if target.exists() else next(iter(_left_behind(target, "old")), None)


def _put(part: Path, target: Path, *, overwrite: bool) -> None:
    """Rename the finished folder.

    A folder cannot replace one with content in one step: the old one is moved aside for that moment, where
    `moved_aside` finds it if the program is killed just then.
    """
    old = part.with_suffix(".old")
    with contextlib.suppress(FileNotFoundError):
        if overwrite:
            target.rename(old)
        else:
            target.rmdir()
    try:
        part.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise


def _left_behind(target: Path, kind: str) -> list[Path]:
    return sorted(target.parent.glob(f".{glob.escape(target.name)}.*.{kind}"))


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
