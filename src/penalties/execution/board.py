"""A table in shared memory: which worker runs which task, since when, and how it ended."""

import fcntl
import mmap
import os
import signal
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Final, NamedTuple

__all__ = ["ENTRIES", "Board", "Entry", "State"]

ENTRIES: Final = 1024
"""Tasks that may be under way at once."""


class State(IntEnum):
    """What has become of a task."""

    QUEUED = 0
    RUNNING = 1
    CANCELLED = 2
    DONE = 3
    """Its result is in the slot."""
    DONE_BESIDE = 4
    """Its result is in a file beside the slot."""
    UNKNOWN = 5
    """Its function has to be sent again."""
    LOST = 6
    """Its worker ended. This and the next are only ever in an answer, not on the board."""
    FAILED = 7
    """Its worker could not serve it."""

    @property
    def over(self) -> bool:
        """Whether the worker has finished with it."""
        return self > State.RUNNING


_LAYOUT: Final = struct.Struct("qqqd")
_BEGAN: Final = struct.Struct("d")


class Entry(NamedTuple):
    """One line of the table."""

    task: int
    state: State
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
        task, state, pid, began = _LAYOUT.unpack_from(self._memory, index * _LAYOUT.size)
        return Entry(task, State(state), pid, began)

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
        self._write(index, Entry(task, State.QUEUED, 0, 0.0))

    def begin(self, index: int, task: int) -> bool:
        """In a worker: take the task, unless it was cancelled."""
        with self._locked(index):
            entry = self.read(index)
            if entry.task != task or entry.state != State.QUEUED:
                return False
            self._write(index, Entry(task, State.RUNNING, os.getpid(), 0.0))
            return True

    def start_clock(self, index: int) -> None:
        """In a worker: the function is loaded and begins to run."""
        _BEGAN.pack_into(self._memory, (index + 1) * _LAYOUT.size - _BEGAN.size, time.monotonic())

    def end(self, index: int, state: State) -> None:
        """In a worker: the task is over, and this process goes on to others."""
        with self._locked(index):
            self._write(index, self.read(index)._replace(state=state))

    def cancel(self, index: int, task: int) -> None:
        """In the broker: kill the worker that runs the task, or make sure that none will."""
        with self._locked(index):
            entry = self.read(index)
            if entry.task != task:
                return
            if entry.state == State.QUEUED:
                self._write(index, entry._replace(state=State.CANCELLED))
            elif entry.state == State.RUNNING:
                with suppress(ProcessLookupError):
                    os.kill(entry.pid, signal.SIGKILL)
