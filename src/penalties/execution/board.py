"""A table in shared memory: which worker runs which task, and since when."""

import fcntl
import mmap
import os
import signal
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

__all__ = ["DONE", "ENTRIES", "QUEUED", "RUNNING", "Board", "Entry"]

ENTRIES: Final = 1024
"""Tasks that may be under way at once."""

QUEUED, RUNNING, DONE, CANCELLED = range(4)

_LAYOUT: Final = struct.Struct("qqqd")
_BEGAN: Final = struct.Struct("d")


class Entry(NamedTuple):
    """One line of the table."""

    task: int
    state: int
    pid: int
    began: float
    """When the function was loaded and began to run, by `time.monotonic`, which all processes share; 0 before."""


class Board:
    """The table, open in the caller, the broker and every worker.

    A task passes from the caller to a worker to its end, and may be cancelled at any moment. Both ends take the lock of
    its line, so a worker is killed only while it runs that task: never the next one, nor while it holds a lock of the
    pool.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        """Create the table, in the caller; open it, elsewhere."""
        self._file = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        if create:
            os.truncate(self._file, ENTRIES * _LAYOUT.size)
        self._memory = mmap.mmap(self._file, ENTRIES * _LAYOUT.size)
        if create:
            # The caller takes no locks, and may have many of these in turn.
            os.close(self._file)

    def read(self, index: int) -> Entry:
        """A line as it is now."""
        return Entry(*_LAYOUT.unpack_from(self._memory, index * _LAYOUT.size))

    def _write(self, index: int, entry: Entry) -> None:
        _LAYOUT.pack_into(self._memory, index * _LAYOUT.size, *entry)

    @contextmanager
    def _locked(self, index: int) -> Generator[None]:
        # A record lock: it ends with its process, however that ends.
        start = index * _LAYOUT.size
        fcntl.lockf(self._file, fcntl.LOCK_EX, _LAYOUT.size, start)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, _LAYOUT.size, start)

    def queue(self, index: int, task: int) -> None:
        """In the caller: the line is now about this task."""
        self._write(index, Entry(task, QUEUED, 0, 0.0))

    def begin(self, index: int, task: int) -> bool:
        """In a worker: take the task, unless it was cancelled."""
        with self._locked(index):
            entry = self.read(index)
            if entry.task != task or entry.state != QUEUED:
                return False
            self._write(index, Entry(task, RUNNING, os.getpid(), 0.0))
            return True

    def start_clock(self, index: int) -> None:
        """In a worker: the function is loaded and begins to run."""
        _BEGAN.pack_into(self._memory, (index + 1) * _LAYOUT.size - _BEGAN.size, time.monotonic())

    def end(self, index: int) -> None:
        """In a worker: the task is done, and this process goes on to others."""
        with self._locked(index):
            self._write(index, self.read(index)._replace(state=DONE))

    def cancel(self, index: int, task: int) -> None:
        """In the broker: kill the worker that runs the task, or make sure that none will."""
        with self._locked(index):
            entry = self.read(index)
            if entry.task != task:
                return
            if entry.state == QUEUED:
                self._write(index, entry._replace(state=CANCELLED))
            elif entry.state == RUNNING:
                with suppress(ProcessLookupError):
                    os.kill(entry.pid, signal.SIGKILL)
