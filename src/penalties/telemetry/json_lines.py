"""JSON lines: a file that stays complete whatever happens."""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ..encoding import dumps
from ..errors import OptionError
from ..files import end_of_lines
from .events import check_events
from .scalars import scalar
from .sink import Sink

__all__ = ["JSONLines"]

_OBJECTS: Final = ("output", "error", "explanation")
_PATIENCE: Final = 0.05
"""Seconds that a process may take to write a line."""


class JSONLines(Sink):
    r"""Append one line of JSON per event to a file.

    A line has `event`, `time` (seconds since 1970), `step`, the measurements and the metadata; `output` and
    `explanation` are nested objects, as from `to_dict()`, and `error` has `type` and `message`. NaN and infinities are
    the strings "NaN", "Infinity" and "-Infinity", which `penalties.encoding.loads` turns back into numbers.

    Each line is written in a single system call, so a process leaves complete lines however it ends, and several
    processes may write to one file. Two things can leave an incomplete last line: a crash of the machine, and a kill
    in the instant between two pages of the file (3 of 300 kills, when writing without a pause). The next sink that
    opens the file removes it. The file's folder must exist.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from penalties.telemetry import JSONLines, events
    >>> path = Path(tempfile.mkdtemp(), "metrics.jsonl")
    >>> with JSONLines(path, events=["term.stop"]):
    ...     events.emit("term.stop", {"value": 6.0}, {"call": 1, "name": "l1", "step": 20})
    >>> path.read_text().partition('"step"')[2]
    ': 20, "value": 6.0, "call": 1, "name": "l1"}\n'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        events: str | Iterable[str] = (
            "pipeline.stop",
            "pipeline.exception",
            "custom_loss.stop",
            "custom_loss.exception",
            "gradients.stop",
            "monitor.explain",
        ),
    ) -> None:
        """Open the file, and remove an incomplete last line that a crash left."""
        self.path: Path = Path(path)
        self.events: tuple[str, ...] = check_events("JSONLines", events)
        if not self.path.parent.is_dir():
            raise OptionError(
                "JSONLines", "path", str(path), f"a file in a folder that exists; create {self.path.parent}"
            )
        super().__init__(str(self.path))
        # On Windows a descriptor would turn \n into \r\n.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._descriptor = os.open(self.path, flags, 0o666)
        size = end_of_lines(self.path)
        if size < self.path.stat().st_size:
            # Another process may be writing this line right now; what a crash left does not change.
            time.sleep(_PATIENCE)
            if size == end_of_lines(self.path):
                os.ftruncate(self._descriptor, size)

    def record(self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Write the event's line."""
        record: dict[str, Any] = {"event": event, "time": time.time(), "step": self.step(event, metadata)}
        output = metadata.get("output")
        nested: Mapping[str, Any] = {} if output is None else output.to_dict()
        for name, value in measurements.items():
            # The output's numbers came in one transfer; reading each measurement would be another.
            record[name] = nested[name] if name in nested else scalar(value)
        for name, value in metadata.items():
            if name not in _OBJECTS and name != "step":
                record[name] = scalar(value)
        if output is not None:
            record["output"] = nested
        if "error" in metadata:
            error = metadata["error"]
            record["error"] = {"type": type(error).__qualname__, "message": str(error)}
        if "explanation" in metadata:
            record["explanation"] = metadata["explanation"].to_dict()
        line = (dumps(record) + "\n").encode()
        with self._lock:
            # Checked again under the lock: once closed, the descriptor may already belong to another file.
            self.check_open()
            written = os.write(self._descriptor, line)
        if written < len(line):
            raise OSError(f"{self.path}: only part of a line could be written; is the disk full?")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if not self.closed:
                super().close()
                os.close(self._descriptor)
