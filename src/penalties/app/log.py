"""`metrics.jsonl`: one JSON object a line, complete to the last line that was written, whatever happens."""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..encoding import dumps, loads
from .disk import RunError, writing
from .privacy import hide

__all__ = ["Log", "now", "records"]


def now() -> str:
    """The time as records have it.

    >>> len(now())
    20
    """
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a log; a last line that is not whole is left out, and a log that is not there has none."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield loads(line)
            except ValueError as error:
                raise RunError(f"{path}, line {number}: is no JSON ({error})") from error


class Log:
    """A log that is open for writing.

    A line is handed to the system in one call, so that a process that is killed leaves whole lines. A thread forces
    them to the disk meanwhile: on a slow disk that takes longer than a step. What fails there is raised by the next
    line. A line that does not fit on the disk leaves nothing behind.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        """Open a file, and cut off what is beyond `size`."""
        self.path = path
        with writing(path):
            # On Windows a descriptor would turn \n into \r\n.
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
            self._descriptor = os.open(path, flags, 0o666)
            self.size = 0
            """Bytes that were written."""
            self._turn = threading.Condition()
            self._error: OSError | None = None
            self._synced = 0
            self._closed = False
            try:
                self.cut(min(size, os.fstat(self._descriptor).st_size))
            except BaseException:
                os.close(self._descriptor)
                raise
        self._thread = threading.Thread(target=self._work, name="penalties-log", daemon=True)
        self._thread.start()

    def write(self, record: Mapping[str, Any]) -> str:
        """Append a record; gives its line."""
        text = hide(dumps(record))
        line = f"{text}\n".encode()
        with writing(self.path):
            try:
                rest = line
                while rest:
                    # The system writes what fits; the next call says why it was not all.
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    self.cut(self.size)
                raise
            with self._turn:
                self.size += len(line)
                self._raise()
                self._turn.notify_all()
        return text

    def cut(self, size: int) -> None:
        """Cut off what is beyond this size."""
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)
        self.size = size

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        with writing(self.path):
            os.fsync(self._descriptor)
            with self._turn:
                self._raise()

    def close(self) -> None:
        """Put everything on the disk, and take no more. To close twice is to close once."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._turn.notify_all()
        self._thread.join()
        try:
            self.sync()
        finally:
            os.close(self._descriptor)

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._closed or self.size != self._synced)
                if self._closed:
                    return
                self._synced = self.size
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                with self._turn:
                    self._error = error
