"""A live table: a bar, and a row for each term with its value, weight, share, gradient and history."""

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from .progress import Pace, share_of, short, sparkline, spoken

__all__ = ["History", "Live"]

_PER_SECOND: Final = 4
"""How often the table is drawn: by a thread of its own, about 3 ms each."""
_WIDTH: Final = 20
_ASCII: Final = "_.:-=+*#"


class History:
    """The values of a term over a run, in at most `2 * width + 1` means of equally many steps each.

    >>> history = History(width=2)
    >>> for value in range(8):
    ...     history.add(value)
    >>> history.values()
    [0.5, 2.5, 4.5, 6.5]
    """

    def __init__(self, width: int = _WIDTH) -> None:
        """Nothing yet."""
        self._most = 2 * width
        self._of = 1
        self._means: list[float] = []
        self._open: list[float] = []

    def add(self, value: float | None) -> None:
        """The next value; None where there was none."""
        self._open.append(math.nan if value is None else value)
        if len(self._open) < self._of:
            return
        self._means.append(_mean(self._open))
        self._open = []
        if len(self._means) > self._most:
            pairs = zip(self._means[::2], self._means[1::2], strict=False)
            left = self._means[len(self._means) // 2 * 2 :]
            self._means = [_mean(list(pair)) for pair in pairs]
            self._open = [value for value in left for _ in range(self._of)]
            self._of *= 2

    def values(self) -> list[float]:
        """The means, in order, the last one perhaps of fewer."""
        return [*self._means, *([_mean(self._open)] if self._open else [])]


def _mean(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


class Live:
    """The progress of a run on a terminal, drawn a few times a second whatever the steps take."""

    def __init__(self, out: TextIO) -> None:
        """On this terminal; nothing is drawn yet."""
        from rich.console import Console

        self._console = Console(file=out)
        self._marks = "▁▂▃▄▅▆▇█" if "utf" in (self._console.encoding or "").lower() else _ASCII
        self._lock = threading.Lock()
        self._folder = Path()
        self._pace = Pace(0, 0)
        self._doing = ""
        self._record: Mapping[str, Any] | None = None
        self._histories: dict[str, History] = {}
        self._evaluated: Mapping[str, Any] | None = None
        self._live: Any = None

    def begin(self, folder: Path, steps: int, done: int) -> None:
        """Begin to draw."""
        from rich.live import Live as RichLive

        self._folder = folder
        self._pace = Pace(steps, done)
        self._live = RichLive(
            get_renderable=self.picture, console=self._console, refresh_per_second=_PER_SECOND, transient=False
        )
        self._live.start()

    def say(self, what: str) -> None:
        """Shown until the next step is finished."""
        self._doing = what

    def stopping(self) -> None:
        """Shown by the next drawing."""
        self._doing = "stopping after this step; once more to stop at once"

    def record(self, record: Mapping[str, Any], line: str) -> None:
        """Remember what is drawn next; events are printed above."""
        if record["kind"] == "event":
            if record["event"] != "checkpoint":
                self._console.print(spoken(record), style=_STYLES.get(record["event"]), highlight=False, markup=False)
            return
        with self._lock:
            if record["kind"] == "eval":
                self._evaluated = record["loss"]
                return
            self._pace.step(record)
            self._record = record
            if not self._doing.startswith("stopping"):
                self._doing = ""
            for name, part in _rows(record["loss"]).items():
                self._histories.setdefault(name, History()).add(part["value"])

    def end(self) -> None:
        """Draw it once more, as it was at the end."""
        if self._live is not None:
            self._doing = ""
            self._live.stop()
            self._live = None

    def picture(self) -> Any:
        """What is drawn now."""
        from rich.console import Group
        from rich.text import Text

        with self._lock:
            parts: list[Any] = [self._bar()]
            if self._record is not None:
                parts.append(self._table(self._record["loss"]))
            if self._doing:
                parts.append(Text(f"{self._doing} …", style="dim"))
            return Group(*parts)

    def _bar(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        pace = self._pace
        row = Table.grid(padding=(0, 2), expand=True)
        for ratio in (None, 1, None, None, None):
            row.add_column(ratio=ratio, no_wrap=True)
        row.add_row(
            f"[bold]{self._folder.name}[/]",
            ProgressBar(total=max(pace.steps, 1), completed=pace.done),
            f"{pace.done}/{pace.steps} steps",
            f"{pace.tokens_per_second():.0f} tokens/s",
            f"{pace.left()} left",
        )
        return row

    def _table(self, loss: Mapping[str, Any]) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        evaluated = {} if self._evaluated is None else _rows(self._evaluated)
        table.add_column("term")
        for heading in ("value", *(["held out"] if evaluated else []), "weight", "share", "gradient"):
            table.add_column(heading, justify="right")
        table.add_column("")
        rows = _rows(loss)
        # A term that rests at this step is still one.
        for name, history in self._histories.items():
            part = rows.get(name, {"value": None})
            share = share_of(loss, name) if name != "loss" else None
            history_line = sparkline(history.values(), self._marks)
            table.add_row(
                Text(name, style="bold" if name == "loss" else ""),
                Text("skipped", style="red") if part.get("error") else short(part["value"]),
                *([short(evaluated.get(name, {}).get("value"))] if evaluated else []),
                short(part.get("weight")),
                "-" if share is None else f"{share:.0%}",
                short(part.get("grad_norm")),
                Text(history_line, style="cyan"),
            )
        return table


_STYLES: Final = {"warning": "yellow", "failed": "red", "finished": "green"}


def _rows(loss: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rows of the table: the loss, its base, and the terms."""
    rows: dict[str, Mapping[str, Any]] = {
        "loss": {"value": loss["loss_total"], "grad_norm": loss["total_grad_norm"]},
    }
    if "base_loss" in loss:
        rows["base_loss"] = loss["base_loss"]
    return {**rows, **loss["regularizers"]}
