"""One writer at a time: a lock that ends with the process that holds it, however the process ends."""

import contextlib
import os
import socket
from pathlib import Path

from ...errors import MissingLibraryError
from ...files import check_plain, open_plain, read_plain
from .disk import RunError, reason

__all__ = ["HeldError", "Lock"]


class HeldError(RunError):
    """Another process holds the lock."""


class Lock:
    """The lock of a run folder, acquired when it is made; a `RunError` names the process that holds it.

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
        """Acquire it, and write down who holds it."""
        try:
            import filelock
        except ImportError as error:
            raise MissingLibraryError("a run folder", "filelock", extra="cli") from error

        try:
            check_plain(path)
        except OSError as error:
            raise RunError(f"{path} cannot be locked: {reason(error)}; remove it, then try again", 2) from error
        # thread_local=False: a run may be closed by another thread than the one that opened it.
        self._lock = filelock.FileLock(path, timeout=0, thread_local=False, fallback_to_soft=False)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise HeldError(
                f"{path.parent} is being written by {_holder(path)}; wait for it, or choose another folder with --run",
                2,
            ) from None
        except (OSError, NotImplementedError) as error:
            raise RunError(
                f"{path} cannot be locked ({error}); choose a folder on a file system with locks, by --run", 2
            ) from error
        # Windows lets nobody write to a locked file: there the holder has no name.
        with (
            contextlib.suppress(OSError),
            open(open_plain(path, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file,
        ):
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")

    def release(self) -> None:
        """Let others acquire it. Releasing twice is the same as releasing once."""
        self._lock.release()


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError):
        return read_plain(path).decode(errors="replace").strip() or "another process"
    return "another process"
