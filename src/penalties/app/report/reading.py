"""From a run's folder to columns: `metrics.jsonl` and `config.json`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from ...errors import said
from ...pipeline.output import BASE
from ..disk import RunError
from ..privacy import hide
from .lines import Columns, number
from .runlog import Evaluations, Event, Failure, Floats, Ints, RunLog, Series, TermLog

__all__ = ["read"]

_LOG: Final = "metrics.jsonl"
_CONFIG: Final = "config.json"
_KINDS: Final = ("step", "eval", "event")


def read(folder: Path) -> RunLog:
    """What is in the folder of a run, however its process ended.

    A last line without an end is left out, and so is a line that is no record (its number is in `unreadable`). Where a
    run was resumed from an earlier step, the steps that it took again replace those of the first time.
    """
    path = folder / _LOG
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder; expected that of a run, as `penalties train` writes it", 2)
    try:
        # Decoded at once: reading as text would look at every line for its kind of ending.
        text = hide(path.read_bytes().decode("utf-8", "replace"))
    except FileNotFoundError:
        if not (folder / _CONFIG).is_file():
            raise RunError(f"{folder} holds no run: there is no {_LOG} in it", 2) from None
        # It failed before its first line.
        text = ""
    except OSError as error:
        raise RunError(f"{path} cannot be read: {said(error)}") from error
    lines = text.split("\n")
    try:
        return _Reader(lines, Columns()).read(folder)
    except ValueError:
        # Something that a shape took for a number was none: parse every line.
        return _Reader(lines, Columns(shapes=False)).read(folder)


class _Reader:
    """The lines of one log, sorted by what they are."""

    def __init__(self, lines: Sequence[str], columns: Columns) -> None:
        self.lines = lines
        self.columns = columns
        self.count = 0
        """Step lines so far."""
        self.evaluations: list[tuple[int, Mapping[str, Any]]] = []
        """With the step lines before each."""
        self.events: list[Event] = []
        self.reasons: dict[str, str] = {}
        """Why terms have no gradient."""
        self.inputs: dict[str, dict[str, None]] = {}
        """What gradients are taken with respect to."""
        self.unreadable: list[int] = []
        self.started: str | None = None
        self.torn = False

    def read(self, folder: Path) -> RunLog:
        for place, line in enumerate(self.lines, 1):
            if self.columns.match(line, self.count):
                self.count += 1
            elif line and not self._add(line):
                self.unreadable.append(place)
        if self.unreadable and self.unreadable[-1] == len(self.lines):
            self.torn = True
            del self.unreadable[-1]
        self.columns.finish()
        config = _config(folder)
        # Every step line has its step.
        steps = self.columns.numbers("step")[1].astype(np.int64)
        taken = _Taken(self.columns, steps)
        names = _in_order(self.columns.terms, config)
        return RunLog(
            name=folder.resolve().name,
            steps=steps[taken.kept],
            total=taken.series("loss_total"),
            grad_norm=taken.series("total_grad_norm"),
            seconds=taken.series("seconds"),
            tokens=taken.series("tokens"),
            learning_rate=taken.series("learning_rate"),
            terms={name: taken.term(name, self.reasons.get(name), self.inputs.get(name, {})) for name in names},
            cosines=taken.cosines(names, self.inputs),
            evaluations=self._evaluated(steps, names),
            events=self.events,
            config=config,
            started=self.started,
            torn=self.torn,
            unreadable=self.unreadable,
        )

    def _add(self, line: str) -> bool:
        """Take a line of any kind; False for one that cannot be read."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(record, dict) or "kind" not in record:
            return False
        entry = cast("dict[str, Any]", record)
        if entry["kind"] not in _KINDS:
            # Of a later version.
            return True
        step = entry.get("step")
        if not isinstance(step, int) or step < 0:
            return False
        if entry["kind"] == "event":
            self.events.append(Event(step, str(entry.get("event", "")), str(entry.get("message", ""))))
            return True
        if not isinstance(entry.get("loss"), dict) or "loss_total" not in entry["loss"]:
            return False
        if entry["kind"] == "eval":
            self.evaluations.append((self.count, entry))
            return True
        if self.count == 0 and isinstance(entry.get("time"), str):
            self.started = entry["time"]
        loss = cast("dict[str, Any]", entry["loss"])
        parts: dict[str, Any] = {BASE: loss.get("base_loss"), **loss.get("regularizers", {})}
        for name, part in parts.items():
            if part and "grad_error" in part:
                self.reasons[name] = str(part["grad_error"])
            if part and "grad_norms" in part:
                self.inputs.setdefault(name, {}).update(dict.fromkeys(part["grad_norms"]))
        self.columns.add(entry, self.count, line)
        self.count += 1
        return True

    def _evaluated(self, steps: Ints, names: Sequence[str]) -> Evaluations:
        found: dict[int, Mapping[str, Any]] = {}
        for before, entry in self.evaluations:
            # One that the run took steps before again has been made again, or will be.
            if not np.any(steps[before:] < entry["step"]):
                found[entry["step"]] = entry["loss"]
        ordered = sorted(found.items())
        contributions = {name: _series([(step, _contribution(loss, name)) for step, loss in ordered]) for name in names}
        return Evaluations(
            _series([(step, number(loss["loss_total"])) for step, loss in ordered]),
            {name: series for name, series in contributions.items() if len(series)},
        )


class _Taken:
    """The columns of the steps that count: those that the run did not take again later."""

    def __init__(self, columns: Columns, steps: Ints) -> None:
        self.columns = columns
        self.steps = steps
        later = np.append(np.minimum.accumulate(steps[::-1])[::-1][1:], np.iinfo(np.int64).max)
        self.kept = np.flatnonzero(steps < later[: len(steps)])
        self.counts = np.zeros(len(steps), bool)
        self.counts[self.kept] = True

    def series(self, what: str, term: str = "") -> Series:
        places, values = self.columns.numbers(what, term)
        counts = self.counts[places]
        return Series(self.steps[places[counts]], values[counts])

    def term(self, name: str, reason: str | None, inputs: Mapping[str, None]) -> TermLog:
        value, grad_norm = self.series("value", name), self.series("grad_norm", name)
        weight = Series(value.steps, np.ones(len(value))) if name == BASE else self.series("weight", name)
        return TermLog(
            name=name,
            value=value,
            weight=weight,
            contribution=Series(value.steps, _at(weight, value.steps) * value.values),
            grad_norm=grad_norm,
            pull=Series(grad_norm.steps, np.abs(_at(weight, grad_norm.steps) * grad_norm.values)),
            duration=self.series("duration", name),
            failures=[
                Failure(int(self.steps[place]), _reason(name, message))
                for place, message in sorted(self.columns.errors.get(name, ()))
                if self.counts[place]
            ],
            grad_error=reason,
            inputs=tuple(inputs),
        )

    def cosines(self, names: Sequence[str], inputs: Mapping[str, Mapping[str, None]]) -> dict[tuple[str, str], Series]:
        """By pair; those that have no input in common have no cosine, though the log says 0."""
        found: dict[tuple[str, str], list[tuple[int, float | None]]] = {}
        rank = {name: place for place, name in enumerate(names)}
        for place, present, matrix in sorted(self.columns.cosines, key=lambda entry: entry[0]):
            if not self.counts[place] or not _square(matrix, len(present)):
                continue
            for i, first in enumerate(present):
                for j, second in enumerate(present[:i]):
                    pair = (first, second) if rank[first] < rank[second] else (second, first)
                    found.setdefault(pair, []).append((int(self.steps[place]), number(matrix[i][j])))
        apart = [
            pair for pair in found if pair[0] in inputs and inputs[pair[0]].keys().isdisjoint(inputs.get(pair[1], ()))
        ]
        ordered = sorted(found.keys() - apart, key=lambda pair: (rank[pair[0]], rank[pair[1]]))
        return {pair: _series(found[pair]).finite for pair in ordered}


def _reason(name: str, message: str) -> str:
    """What went wrong, without what the place says already."""
    return message.removeprefix("TermError: ").replace(f"{name}: ", "", 1)


def _square(matrix: Any, size: int) -> bool:
    rows = cast("list[Any]", matrix) if isinstance(matrix, list) else []
    return len(rows) == size and all(isinstance(row, list) and len(cast("list[Any]", row)) == size for row in rows)


def _at(series: Series, steps: Ints) -> Floats:
    """The values at these steps, which are among its own; NaN at others."""
    values = np.full(len(steps), np.nan)
    places = np.searchsorted(series.steps, steps)
    inside = places < len(series)
    inside[inside] = series.steps[places[inside]] == steps[inside]
    values[inside] = series.values[places[inside]]
    return values


def _series(pairs: Sequence[tuple[int, float | None]]) -> Series:
    there = [(step, value) for step, value in pairs if value is not None]
    return Series(np.array([step for step, _ in there], np.int64), np.array([value for _, value in there], np.float64))


def _contribution(loss: Mapping[str, Any], name: str) -> float | None:
    part: Any = loss.get("base_loss") if name == BASE else loss.get("regularizers", {}).get(name)
    return None if not part else number(part.get("value" if name == BASE else "contribution"))


def _config(folder: Path) -> dict[str, Any] | None:
    try:
        config = json.loads(hide((folder / _CONFIG).read_text("utf-8")))
    except (OSError, ValueError):
        # A report of a log alone is still a report.
        return None
    return cast("dict[str, Any]", config) if isinstance(config, dict) else None


def _in_order(found: Mapping[str, None], config: Mapping[str, Any] | None) -> list[str]:
    """The base loss, then terms as the config has them, then others as they come in the log."""
    tables: Any = (config or {}).get("term", [])
    ranked = [BASE, *(str(table.get("name") or table.get("fn")) for table in tables)]
    return sorted(found, key=lambda name: ranked.index(name) if name in ranked else len(ranked))
