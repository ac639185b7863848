"""A live table: a bar, and a row for each term with its value, weight, share of the loss, gradient and history."""

import array
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from ..console import printable
from .progress import (
    STOPPING,
    Pace,
    Progress,
    own_metrics,
    resources,
    share_of,
    short,
    sparkline,
    spoken,
    spoken_samples,
)

__all__ = ["Live", "means"]

_PER_SECOND: Final = 2
"""Redraws per second, in a thread; no other Python code runs during a redraw."""
_LONGEST: Final = 40
"""The maximum width of a history."""
_WIDEST: Final = 100
_SHORTEST: Final = 10
"""The maximum width of a line with a bar, and the minimum width of a bar or a history."""
_ASCII: Final = "_.:-=+*#"


def means(values: "array.array[float]", most: int) -> list[float]:
    """Numbers as at most this many means over equal numbers of steps; the last may be of fewer.

    >>> means(array.array("d", range(8)), 4)
    [0.5, 2.5, 4.5, 6.5]
    """
    of = max(1, -(-len(values) // most))
    numbers = np.frombuffer(values)
    finite = np.isfinite(numbers)
    starts = np.arange(0, len(numbers), of)
    counts = np.add.reduceat(finite.astype(float), starts)
    sums = np.add.reduceat(np.where(finite, numbers, 0.0), starts)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).tolist()


class Live(Progress):
    """The display of a run on a terminal, drawn a few times a second, however long the steps take."""

    def __init__(self, out: TextIO) -> None:
        """Draw on this terminal, once the run begins."""
        from rich.console import Console

        self._console = Console(file=out)
        wide = "utf" in (self._console.encoding or "").lower()
        self._marks, self._bars, self._times = ("▁▂▃▄▅▆▇█", "━─", "×") if wide else (_ASCII, "#-", "x")
        self._lock = threading.Lock()
        self._folder = Path()
        self._pace = Pace(0, 0)
        self._doing = ""
        self._stopping = False
        self._record: Mapping[str, Any] | None = None
        self._histories: dict[str, array.array[float]] = {}
        self._gradients: dict[str, float] = {}
        """The last norm of each row: not every step measures them."""
        self._ended = False
        self._evaluated: Mapping[str, Any] | None = None
        self._live: Any = None

    def begin(self, folder: Path, steps: int, done: int) -> None:
        """Start drawing."""
        from rich.live import Live as RichLive

        self._folder = folder
        self._pace = Pace(steps, done)
        self._live = RichLive(
            get_renderable=self.picture, console=self._console, refresh_per_second=_PER_SECOND, transient=False
        )
        self._live.start()

    def say(self, what: str) -> None:
        """Shown until the next step is finished."""
        self._doing = printable(what)

    def stopping(self) -> None:
        """Shown with the next drawing."""
        self._stopping = True

    def record(self, record: Mapping[str, Any], line: str) -> None:
        """Store what to draw next; events are printed above the table."""
        from rich.text import Text

        if record["kind"] == "event":
            if record["event"] != "checkpoint":
                # A styled text: a style of the call would apply to the table below it too.
                self._console.print(Text(printable(spoken(record, self._pace.first)), _STYLES.get(record["event"], "")))
            return
        if record["kind"] == "samples":
            for said in spoken_samples(record):
                self._console.print(Text(printable(said)))
            return
        with self._lock:
            if record["kind"] == "eval":
                self._evaluated = record["loss"]
                return
            self._pace.step(record)
            self._record = record
            self._doing = ""
            for name, part in _rows(record["loss"]).items():
                value = math.nan if part["value"] is None else part["value"]
                self._histories.setdefault(name, array.array("d")).append(value)
                norm = part.get("grad_norm_weighted", part.get("grad_norm"))
                if norm is not None:
                    self._gradients[name] = norm

    def end(self) -> None:
        """Draw the final state."""
        if self._live is not None:
            self._doing, self._stopping, self._ended = "", False, True
            self._live.stop()
            self._live = None

    def picture(self) -> Any:
        """What is drawn now: one text takes 0.5 ms to draw, a table of rich 3.5."""
        from rich.text import Text

        made = Text(no_wrap=True, overflow="crop")
        with self._lock:
            self._bar(made)
            if self._record is not None:
                self._table(made, self._record["loss"])
                made.append(f"\n{'  '.join(resources(self._record))}", "dim")
            if self._doing:
                made.append(f"\n{self._doing} …", "dim")
            if self._stopping:
                made.append(f"\n{STOPPING}", "yellow")
        return made

    def _bar(self, made: Any) -> None:
        pace = self._pace
        time = pace.elapsed() if self._ended else pace.rest()
        rest = f"  {pace.done}/{pace.steps} steps  {pace.tokens_per_second():.0f} tokens/s  {time}"
        name = f"{printable(self._folder.name)}  "
        room = max(_SHORTEST, min(self._console.width, _WIDEST) - len(name) - len(rest))
        full = min(room, room * pace.done // max(pace.steps, 1))
        made.append(name, "bold").append(self._bars[0] * full, "green").append(self._bars[1] * (room - full), "dim")
        made.append(rest)

    def _table(self, made: Any, loss: Mapping[str, Any]) -> None:
        evaluated = {} if self._evaluated is None else _rows(self._evaluated)
        rows = _rows(loss)
        gradient = f"gradient {self._times} weight"
        lines = [["term", "value", *(["held out"] if evaluated else []), "weight", "of loss", gradient]]
        # A term that does not run at this step keeps its row.
        for name in self._histories:
            part = rows.get(name, {"value": None})
            share = share_of(loss, name) if name != "loss" else None
            lines.append(
                [
                    printable(name),
                    "skipped" if part.get("error") else short(part["value"]),
                    *([short(evaluated.get(name, {}).get("value"))] if evaluated else []),
                    short(part.get("weight")),
                    "-" if share is None else f"{share:.0%}",
                    short(self._gradients.get(name)),
                ]
            )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line, history in zip(lines, [None, *self._histories.values()], strict=True):
            first, *others = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            numbers = "  ".join(cell.strip().rjust(width) for cell, width in zip(others, widths[1:], strict=True))
            failed = "skipped" in line[1]
            made.append(f"\n{first}  ", "dim" if history is None else "bold" if line[0] == "loss" else "")
            made.append(numbers, "dim" if history is None else "red" if failed else "")
            if history is not None:
                room = self._console.width - len(first) - len(numbers) - 4
                made.append(f"  {sparkline(means(history, min(max(room, _SHORTEST), _LONGEST)), self._marks)}", "cyan")


_STYLES: Final = {"warning": "yellow", "failed": "red", "finished": "green"}


def _rows(loss: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rows of the table: the loss, its base, the terms, and the metrics of both."""
    rows: dict[str, Mapping[str, Any]] = {
        "loss": {"value": loss["loss_total"], "grad_norm": loss["total_grad_norm"]},
    }
    if "base_loss" in loss:
        rows["base_loss"] = loss["base_loss"]
    # Metrics last: they are what a small terminal cuts off.
    return {**rows, **loss["regularizers"], **{name: {"value": value} for name, value in own_metrics(loss).items()}}
