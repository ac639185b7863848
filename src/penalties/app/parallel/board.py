"""The display of many runs: a table on a terminal, a line for each that ends in a pipe, or nothing."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from ..console import printable, say
from ..problems import counted
from ..runs.run import Run
from ..train.progress import clock, short

__all__ = ["STOPPING", "Board", "Lines", "Live", "chosen"]

STOPPING: Final = "stopping after this step of each run; press Ctrl-C again to stop at once"
_ORDER: Final = ("running", "failed", "finished", "stopped")
_STYLES: Final = {"failed": "red", "finished": "green", "stopped": "yellow"}
_ROOM: Final = 6
"""Lines of a terminal that are not rows: the header, the summary, and some air."""


@dataclass
class _Row:
    """A run of the table."""

    name: str
    folder: Path
    steps: int
    state: str = "running"
    step: int = 0
    loss: float | None = None
    message: str = ""
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def look(self) -> None:
        """Read the last line of its log."""
        record = Run(self.folder).last()
        if record is not None and isinstance(record.get("step"), int):
            self.step = record["step"]
            if record.get("kind") == "step":
                self.loss = record["loss"]["loss_total"]

    def settle(self) -> None:
        """Read its last step, which has other records after it."""
        for record in Run(self.folder).records():
            if record.get("kind") == "step":
                self.step, self.loss = record["step"], record["loss"]["loss_total"]

    @property
    def cells(self) -> list[str]:
        seconds = (time.monotonic() if self.ended is None else self.ended) - self.began
        return [self.name, self.message or self.state, f"{self.step}/{self.steps}", short(self.loss), clock(seconds)]


class Board:
    """A display of many runs that go on side by side; this one shows nothing but an answer to Ctrl-C."""

    def __init__(self, total: int) -> None:
        """For so many runs."""
        self.total = total
        self.rows: dict[Path, _Row] = {}

    def start(self, name: str, folder: Path, steps: int) -> None:
        """A run starts, or goes on."""
        self.rows[folder] = _Row(name, folder, steps)

    def look(self) -> None:
        """Some time has passed."""

    def finish(self, folder: Path, message: str | None) -> None:
        """A run ended; with the message if it failed."""
        row = self.rows[folder]
        row.settle()
        row.state, row.message, row.ended = "finished" if message is None else "failed", message or "", time.monotonic()

    def stop(self, folder: Path) -> None:
        """A run was interrupted, and can be resumed."""
        row = self.rows[folder]
        row.look()
        row.state, row.ended = "stopped", time.monotonic()

    def stopping(self) -> None:
        """Called from a signal handler, so it must not block."""
        os.write(2, f"{STOPPING}\n".encode())

    def end(self) -> None:
        """Nothing more will come."""

    @property
    def summary(self) -> str:
        """How many runs are in which state."""
        states = [row.state for row in self.rows.values()]
        parts = [f"{states.count(state)} {state}" for state in _ORDER if state in states]
        waiting = self.total - len(states)
        return ", ".join([*parts, *([f"{waiting} waiting"] if waiting > 0 else [])])


class Lines(Board):
    """A line for each run that starts or ends."""

    def __init__(self, total: int, out: TextIO) -> None:
        """Write to this stream."""
        super().__init__(total)
        self._out = out

    def start(self, name: str, folder: Path, steps: int) -> None:
        """Say which."""
        super().start(name, folder, steps)
        say(f"{len(self.rows)} of {self.total}: {name} started", out=self._out)

    def finish(self, folder: Path, message: str | None) -> None:
        """Say how it ended."""
        super().finish(folder, message)
        row = self.rows[folder]
        how = f"failed: {message}" if message else f"finished {counted(row.step, 'step')}, loss {short(row.loss)}"
        say(f"{row.name} {how} ({self.summary})", out=self._out)


class Live(Board):
    """A table that is drawn again as runs go on."""

    def __init__(self, total: int, out: TextIO) -> None:
        """Draw on this terminal."""
        from rich.console import Console
        from rich.live import Live as RichLive

        super().__init__(total)
        self._console = Console(file=out)
        self._live = RichLive(console=self._console, auto_refresh=False)
        self._live.start()
        self._stopping = False

    def look(self) -> None:
        """Read the logs, and draw."""
        for row in self.rows.values():
            if row.state == "running":
                row.look()
        self._live.update(self.picture(), refresh=True)

    def stopping(self) -> None:
        """Shown with the next drawing."""
        self._stopping = True

    def end(self) -> None:
        """Leave the last picture."""
        self._live.update(self.picture(), refresh=True)
        self._live.stop()

    def picture(self) -> Any:
        """The table, as far as there is room: what runs first, and what ended last."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows = sorted(self.rows.values(), key=lambda row: (_ORDER.index(row.state), -(row.ended or 0.0)))
        made = Table("run", "state", "steps", "loss", "time", box=box.SIMPLE_HEAD, pad_edge=False)
        for row in rows[: max(1, self._console.height - _ROOM)]:
            style = _STYLES.get(row.state, "")
            made.add_row(*(Text(printable(cell), style, no_wrap=True, overflow="ellipsis") for cell in row.cells))
        lines = [Text(self.summary, "dim"), *([Text(STOPPING, "yellow")] if self._stopping else [])]
        return Group(made, *lines)


def chosen(total: int, out: TextIO, *, quiet: bool) -> Board:
    """The display for a stream."""
    if quiet:
        return Board(total)
    return Live(total, out) if out.isatty() else Lines(total, out)
