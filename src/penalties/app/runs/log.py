"""`metrics.jsonl`: one JSON object per line, complete up to the last line, whatever happens."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ...encoding import dumps, loads
from ...files import end_of_lines, open_plain
from ..privacy import hide
from .disk import RunError, reason, writing

__all__ = ["Log", "now", "records"]

_RARELY: Final = 300
"""The pause between two syncs, as a multiple of the time that a sync takes."""


def now() -> str:
    """The time, in the format of records.

    >>> len(now())
    20
    """
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a log, without an incomplete last line; a missing log has none."""
    try:
        descriptor = open_plain(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"{path} cannot be read: {reason(error)}; restore the file") from error
    with open(descriptor, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                found: Any = loads(line)
                wrong = "" if isinstance(found, dict) else "is not an object"
            except ValueError as error:
                found, wrong = None, f"is not JSON ({error})"
            if wrong:
                raise RunError(f"{path}, line {number} {wrong}; remove the line, or restore the file")
            yield found


class Log:
    """A log that is open for writing.

    A line is written by one system call, so that a killed process leaves complete lines. It is synced to the disk,
    against a crash of the machine, as often as that takes no more than 0.3 % of the time. A line that does not fit on
    the disk leaves nothing behind.
    """

    def __init__(self, path: Path) -> None:
        """Open a file, and cut off an incomplete last line."""
        self.path = path
        self.size: int = 0
        """Bytes that were written."""
        self._next = 0.0
        with writing(path):
            self._descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
            try:
                self.cut(end_of_lines(path))
            except BaseException:
                os.close(self._descriptor)
                raise

    def write(self, record: Mapping[str, Any]) -> str:
        """Append a record; returns its line."""
        text = hide(dumps(record))
        line = f"{text}\n".encode()
        with writing(self.path):
            rest = line
            try:
                while rest:
                    # The system writes what fits; the next call raises the reason why the rest did not.
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    self.cut(self.size)
                raise
        self.size += len(line)
        if time.monotonic() >= self._next:
            self.sync()
        return text

    def cut(self, size: int) -> None:
        """Cut off everything beyond this size."""
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)
        self.size = size

    def cut_to_line(self, size: int) -> None:
        """Cut off everything beyond this size, and a line that is incomplete then: the log may have been changed."""
        self.cut(min(size, self.size))
        self.cut(end_of_lines(self.path))

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        began = time.monotonic()
        with writing(self.path):
            os.fsync(self._descriptor)
        ended = time.monotonic()
        # A sync takes 0.1 ms on a good disk and 30 ms on a slow one: too long for every line.
        self._next = ended + _RARELY * (ended - began)

    def close(self) -> None:
        """Sync and close the file. Closing twice is the same as closing once."""
        if self._descriptor < 0:
            return
        try:
            self.sync()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1
