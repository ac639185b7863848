"""A folder of entries by key, of bounded size, that several processes may use at once."""

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...errors import MissingLibraryError
from ...files import read_plain, write_atomically

__all__ = ["Store"]

_MAGIC: Final = b"penalties-cache-1\n"
_PART: Final = r"[0-9a-f]{16}\.part"
"""How the name ends of what `write_atomically` has not finished."""
_OWN: Final = re.compile(rf"[0-9a-f]{{64}}|\.[0-9a-f]{{64}}\.{_PART}")
_OWN_SUM: Final = re.compile(rf"\.size\.{_PART}")
_DIGEST: Final = 32
_FILLED: Final = 0.9
"""What is left after an eviction, as a share of the bound: one for every entry would read the folder each time."""
_PATIENCE: Final = 10.0
"""Seconds to wait for another process that writes."""
_LEFT_BEHIND: Final = 3600.0
"""Seconds after which a part of an entry is that of a process that was killed."""


class _File(NamedTuple):
    used: float
    size: int
    path: str


class Store:
    """Entries of bytes in files of their own, by keys of 64 hexadecimal digits; the least recently used go first.

    An entry is written as a whole, with a checksum over its key and its content: one that is damaged, cut short, or
    has the name of another is not found, and is removed. Other files in the folder stay.

    >>> import tempfile
    >>> store, key, other = Store(tempfile.mkdtemp(), 1000), 32 * "ab", 32 * "cd"
    >>> store.put(key, b"content"), store.get(key), store.get(other)
    (True, b'content', None)
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        """Nothing is read or made yet."""
        self.folder: Path = Path(folder)
        self.max_bytes: int = max_bytes

    def get(self, key: str) -> bytes | None:
        """The content of an entry, which is now the most recently used; None where there is none."""
        path = self._path(key)
        try:
            data = read_plain(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            # A link, a pipe or whatever else is not an entry. What cannot be read just now may be one: too many files
            # are open, or a network drive is away.
            if error.errno in (errno.EINVAL, errno.ELOOP):
                self.remove(key)
            return None
        start = len(_MAGIC) + _DIGEST
        content = data[start:]
        if data[:start] != _MAGIC + _checksum(key, content):
            self.remove(key)
            return None
        with contextlib.suppress(OSError):
            # Evicted since it was read, or in a folder that may only be read.
            os.utime(path)
        return content

    def put(self, key: str, content: bytes) -> bool:
        """Write an entry; False where it is larger than the bound. An OSError says why it could not be written."""
        size = len(_MAGIC) + _DIGEST + len(content)
        if size > self.max_bytes:
            return False
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            used = self._used()
            if used + size > self.max_bytes:
                used = self._evict(int(self.max_bytes * _FILLED) - size)
            # First the sum: if the process ends in between, it is too large, which only means to count earlier.
            write_atomically(self._sum, str(used + size))
            write_atomically(path, _MAGIC + _checksum(key, content) + content)
        return True

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there."""
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    @property
    def _sum(self) -> Path:
        return self.folder / "size"

    def _used(self) -> int:
        """The bytes of all entries, at most: counted where it was not written down."""
        try:
            return max(0, int(read_plain(self._sum)))
        except (OSError, ValueError):
            return sum(file.size for file in self._files())

    def _evict(self, most: int) -> int:
        """Remove the least recently used entries until the others take so many bytes; returns what they take."""
        files = sorted(self._files())
        used = sum(file.size for file in files)
        for file in files:
            if used <= max(most, 0):
                break
            with contextlib.suppress(OSError):
                os.unlink(file.path)
                used -= file.size
        return used

    def _files(self) -> Iterator[_File]:
        """Every entry. Unfinished ones that are old are removed."""
        now = time.time()
        for one in self._own():
            with contextlib.suppress(OSError):
                found = one.stat(follow_symlinks=False)
                if one.name.endswith(".part") and now - found.st_mtime > _LEFT_BEHIND:
                    os.unlink(one.path)
                else:
                    yield _File(found.st_mtime, found.st_size, one.path)

    def _own(self) -> Iterator[os.DirEntry[str]]:
        """What a store wrote; other files in its folder are somebody's, and stay."""
        for one in self._in(self.folder):
            if _OWN_SUM.fullmatch(one.name):
                yield one
            elif len(one.name) == 2 and one.is_dir(follow_symlinks=False):
                for file in self._in(Path(one.path)):
                    if _OWN.fullmatch(file.name) and file.name.strip(".").startswith(one.name):
                        yield file

    def _in(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        try:
            import filelock
        except ImportError as error:
            raise MissingLibraryError("a cache of terms", "filelock", extra="cache") from error
        lock: Any = filelock.FileLock(self.folder / "lock")
        try:
            held = lock.acquire(timeout=_PATIENCE)
        except filelock.Timeout as error:
            message = f"another process has held the lock for {_PATIENCE:g} s"
            raise OSError(errno.EAGAIN, message, str(self.folder / "lock")) from error
        with held:
            yield


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.blake2b(key.encode() + b"\n" + content, digest_size=_DIGEST).digest()
