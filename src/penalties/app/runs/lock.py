"""One writer at a time: a lock that ends with the process that holds it, however that ends."""

import errno
import os
import socket
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .disk import RunError

__all__ = ["Lock"]

_HELD: Final = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
"""What the system says where another has the lock; whatever else it says, there is none to have."""

_FAR: Final = 1 << 30
"""The byte that Windows locks: what is locked there cannot be read, and the name of the holder can."""


class Lock:
    """The lock of a run folder; taken when it is made, or a `RunError` that says who has it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "lock")
    >>> lock = Lock(path)
    >>> try:
    ...     Lock(path)
    ... except RunError as error:
    ...     print("is being written" in str(error))
    True
    >>> lock.release()
    >>> Lock(path).release()
    """

    def __init__(self, path: Path) -> None:
        """Take it, and leave word of who has it."""
        # The file stays: to remove it would let two hold locks of two files of one name.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._lock(path)
        except BaseException:
            os.close(self._descriptor)
            raise
        _held.add(self)

    def _lock(self, path: Path) -> None:
        try:
            _take(self._descriptor)
        except OSError as error:
            if error.errno not in _HELD:
                raise RunError(
                    f"{path} cannot be locked ({error}): the file system has no locks; "
                    "choose a folder on another with --run",
                    2,
                ) from error
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            holder = os.read(self._descriptor, 200).decode(errors="replace").strip() or "another process"
            raise RunError(
                f"{path.parent} is being written by {holder}; wait for it, or choose another folder with --run", 2
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def release(self) -> None:
        """Let others have it. To release twice is to release once."""
        if self in _held:
            _held.discard(self)
            os.close(self._descriptor)


_held: "Final[weakref.WeakSet[Lock]]" = weakref.WeakSet()


def _forked() -> None:
    """A fork has the same file open: with it the lock would outlive the process that took it."""
    for lock in list(_held):
        lock.release()


def _never(*, after_in_child: Callable[[], None]) -> None:
    """Windows cannot fork."""


getattr(os, "register_at_fork", _never)(after_in_child=_forked)


def _take(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, _FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
