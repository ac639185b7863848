"""The display of a run while it trains: a live table, plain lines, JSON lines, or nothing.

Each gets every record of the log, and its line.
"""

import functools
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from ..console import say
from ..problems import counted, sized

__all__ = ["SILENT", "STOPPING", "Enduring", "JSONProgress", "Lines", "Pace", "Progress", "Quiet", "chosen"]
__all__ += [
    "clock",
    "own_metrics",
    "resources",
    "share_of",
    "short",
    "sparkline",
    "spoken",
    "spoken_samples",
    "terms_shown",
]

STOPPING: Final = "stopping after this step; press Ctrl-C again to stop at once"
_TOLD: Final = ("evaluating", "sampling", "saving a checkpoint")
"""Announced when they are done."""
_WIDTH: Final = 200
"""Characters of a sample that are shown."""
_LINES: Final = 20
"""Lines for the steps of a run of any length, and at most as many for its evaluations and checkpoints."""


class Progress:
    """A display of a run while it trains; this one shows nothing."""

    def begin(self, folder: Path, steps: int, done: int) -> None:
        """A run in this folder starts, with that many steps, some of which may be done."""

    def say(self, what: str) -> None:
        """What the run is doing now, if it takes a while."""

    def stopping(self) -> None:
        """The user requested a stop. Called from a signal handler, so it must not block."""

    def record(self, record: Mapping[str, Any], line: str) -> None:
        """A record of the log, and its line."""

    def end(self) -> None:
        """The run ended, in whatever way."""


SILENT: Final = Progress()


class JSONProgress(Progress):
    """The lines of the log as they are written, for programs."""

    def __init__(self, out: TextIO) -> None:
        """Write to this stream."""
        self._out = out

    def record(self, record: Mapping[str, Any], line: str) -> None:
        """Print the line."""
        say(line, out=self._out)


class Quiet(Progress):
    """A display that shows nothing but an answer to Ctrl-C."""

    def stopping(self) -> None:
        """Say so; `print` fails if the signal interrupted another `print`."""
        os.write(2, f"{STOPPING}\n".encode())


class Lines(Quiet):
    """A line now and then, for a pipe or a file."""

    def __init__(self, out: TextIO, lines: int = _LINES) -> None:
        """Write to this stream, about this many lines for the steps."""
        self._out = out
        self._lines = lines
        self._pace = Pace(0, 0)
        self._parts: dict[str, int] = {}
        """By kind of line: the part of the run in which the last one was printed."""
        self._said = ""

    def begin(self, folder: Path, steps: int, done: int) -> None:
        """Print the folder and the steps."""
        self._pace = Pace(steps, done)
        self._parts = {}
        self._print(f"{folder}: {counted(steps, 'step')}" + (f", {done} of them done" if done else ""))

    def say(self, what: str) -> None:
        """Print what may take a while, once; evaluations and checkpoints have their own lines."""
        kind = what.partition(":")[0]
        if kind not in _TOLD and kind != self._said:
            self._said = kind
            self._print(kind)

    def record(self, record: Mapping[str, Any], line: str) -> None:
        """Print the records that are worth a line."""
        kind, done = record.get("event", record["kind"]), record["step"]
        if kind == "step":
            self._pace.step(record)
            done = self._pace.done
        if kind in ("step", "eval", "samples", "checkpoint") and not self._due(kind, done):
            return
        if kind == "samples":
            for line in spoken_samples(record):
                self._print(line)
        elif kind == "step":
            pace = [f"{self._pace.tokens_per_second():.0f} tokens/s", *resources(record), self._pace.rest()]
            self._print(f"step {done}/{self._pace.steps}: {_numbers(record['loss'])}; {', '.join(pace)}")
        else:
            self._print(spoken(record, self._pace.first))

    def _due(self, kind: str, done: int) -> bool:
        """Whether this is the first of its kind in its part of the run; the last step counts as a part."""
        part = done * self._lines // max(self._pace.steps, 1)
        if self._parts.get(kind) == part:
            return False
        self._parts[kind] = part
        return True

    def _print(self, line: str) -> None:
        say(line, out=self._out)


class Pace:
    """The speed of a run, from the steps of this process."""

    def __init__(self, steps: int, done: int) -> None:
        """A run of this many steps, some of which may be done."""
        self.steps = steps
        self.done: int = done
        self.first = done
        """Finished steps when this process began."""
        self._created = time.monotonic()
        self._began = 0.0
        self._tokens = 0.0
        self._seconds = 0.0

    def step(self, record: Mapping[str, Any]) -> None:
        """A step is finished."""
        if self.done == self.first:
            self._began = time.monotonic() - record["seconds"]
        self.done = record["step"]
        # Over about the last ten steps.
        self._tokens = 0.9 * self._tokens + record["tokens"]
        self._seconds = 0.9 * self._seconds + record["seconds"]

    def tokens_per_second(self) -> float:
        """During steps, without evaluations and checkpoints."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def left(self) -> str:
        """The remaining time, including evaluations and checkpoints, such as `"1:23"`."""
        made = self.done - self.first
        if not made:
            return "-:--"
        return clock((time.monotonic() - self._began) / made * (self.steps - self.done))

    def rest(self) -> str:
        """The remaining time, or at the end the time that the run took in this process."""
        return f"{self.left()} left" if self.done < self.steps else self.elapsed()

    def elapsed(self) -> str:
        """The time since this process started the run, such as `"1:23 elapsed"`."""
        return f"{clock(time.monotonic() - self._created)} elapsed"


def clock(seconds: float) -> str:
    """A duration in hours, minutes and seconds.

    >>> clock(83), clock(4000)
    ('1:23', '1:06:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def short(value: Any) -> str:
    """A number in a few characters.

    >>> short(0.000123456), short(3.14159), short(None), short(float("nan"))
    ('0.000123', '3.142', '-', 'nan')
    """
    if value is None:
        return "-"
    return f"{value:.4g}" if abs(value) >= 1 or value != value else f"{value:.3g}"


def share_of(loss: Mapping[str, Any], name: str) -> float | None:
    """The share of a term in the sum of magnitudes; None if that is unknown."""
    contributions = {key: part["contribution"] for key, part in loss["regularizers"].items()}
    if "base_loss" in loss:
        contributions["base_loss"] = loss["base_loss"]["value"]
    sizes = {key: abs(value) for key, value in contributions.items() if value is not None and math.isfinite(value)}
    whole = sum(sizes.values())
    return sizes[name] / whole if whole and name in sizes else None


def own_metrics(loss: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of the base loss and of terms, by `term/metric`; one that repeats the value of its term is left out.

    >>> own_metrics({"base_loss": {"value": 0.7, "custom": {"nll": 0.7, "accuracy": 0.5}}, "regularizers": {}})
    {'base_loss/accuracy': 0.5}
    """
    parts = {**({"base_loss": loss["base_loss"]} if "base_loss" in loss else {}), **loss["regularizers"]}
    return {
        f"{name}/{metric}": value
        for name, part in parts.items()
        for metric, value in part.get("custom", {}).items()
        if part["value"] is None or not math.isclose(value, part["value"], rel_tol=1e-5)
    }


def resources(record: Mapping[str, Any]) -> list[str]:
    """The learning rate of a step and the memory that the run takes, in words.

    >>> resources({"learning_rate": 3e-4, "memory": 2_500_000_000})
    ['learning rate 0.0003', '2.5 GB']
    """
    memory = record.get("memory")
    rate = f"learning rate {short(record['learning_rate'])}"
    return [rate] if memory is None else [rate, sized(memory)]


def spoken(record: Mapping[str, Any], first: int = 0) -> str:
    """An evaluation or an event in one line, of a process that began after so many finished steps.

    >>> spoken({"kind": "event", "step": 4, "event": "warning", "message": "l1 dominates l2"})
    'warning at step 4: l1 dominates l2'
    """
    if record["kind"] == "eval":
        return f"evaluation {_when(record)}: {_numbers(record['loss'])}"
    event, message = record["event"], record["message"]
    if event == "checkpoint":
        return f"checkpoint {message}"
    # A message before the first step, such as one about the data, belongs to no step.
    where = f" at step {record['step']}" if event == "warning" and record["step"] > first else ""
    return f"{event}{where}: {message}"


def _numbers(loss: Mapping[str, Any]) -> str:
    """The loss and its terms, and after a semicolon the metrics that they have."""
    own = ", ".join(f"{name} {short(value)}" for name, value in own_metrics(loss).items())
    return f"{terms_shown(loss)}; {own}" if own else terms_shown(loss)


def spoken_samples(record: Mapping[str, Any]) -> list[str]:
    """Samples as lines, the start of each, after one with the metrics over them if there are any.

    >>> samples = [{"prompt": "2 + 3 =", "text": " 5"}]
    >>> spoken_samples({"kind": "samples", "step": 20, "samples": samples, "metrics": {"exact_match": 0.5}})
    ['samples after step 20: exact_match 0.5', '  2 + 3 = → 5']
    """
    when = _when(record)
    numbers = [f"{name} {short(value)}" for name, value in record["metrics"].items()]
    lines = [f"samples {when}: {', '.join(numbers)}" if numbers else f"samples {when}:"]
    for one in record["samples"]:
        line = f"  {one['prompt'].strip()} → {one['text'].strip()}"
        lines.append(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…")
    return lines


def _when(record: Mapping[str, Any]) -> str:
    return f"after step {record['step']}" if record["step"] else "before step 1"


def terms_shown(loss: Mapping[str, Any]) -> str:
    """The loss and its terms in one line."""
    parts = [f"loss {short(loss['loss_total'])}"]
    if "base_loss" in loss:
        parts.append(f"base_loss {short(loss['base_loss']['value'])}")
    for name, part in loss["regularizers"].items():
        share = share_of(loss, name)
        of_loss = "" if share is None else f" ({share:.0%})"
        parts.append(f"{name} {'skipped' if part['value'] is None else short(part['value'])}{of_loss}")
    return ", ".join(parts)


class Enduring(Progress):
    """Another display, until it cannot write any more, for example to a closed terminal: training continues."""

    def __init__(self, shown: Progress) -> None:
        """Wrap a display."""
        self._shown = shown
        for name in ("begin", "say", "stopping", "record", "end"):
            setattr(self, name, functools.partial(self._try, name))

    def _try(self, name: str, *arguments: Any) -> None:
        try:
            getattr(self._shown, name)(*arguments)
        except OSError:
            self._shown = SILENT


def chosen(*, quiet: bool = False, json: bool = False, out: TextIO | None = None, lines: int = _LINES) -> Progress:
    """The display for the options of a command and its output; in a pipe, about this many lines for the steps."""
    stream = sys.stdout if out is None else out
    if json:
        return Enduring(JSONProgress(stream))
    if quiet:
        return Enduring(Quiet())
    if not stream.isatty():
        return Enduring(Lines(stream, lines))
    from .live import Live

    return Enduring(Live(stream))


def sparkline(values: Sequence[float], marks: str = "▁▂▃▄▅▆▇█") -> str:
    """Numbers as a row of bars, from the smallest to the largest; a gap for one that is not finite.

    >>> sparkline([0.0, 1.0, 2.0, float("nan"), 7.0])
    '▁▂▃ █'
    """
    finite = [value for value in values if math.isfinite(value)]
    low = min(finite, default=0.0)
    width = max(finite, default=0.0) - low
    top = len(marks) - 1
    return "".join(
        " " if not math.isfinite(value) else marks[round(top * (value - low) / width) if width else 0]
        for value in values
    )
