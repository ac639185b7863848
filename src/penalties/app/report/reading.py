"""Reading a run's folder, `metrics.jsonl` and `config.json`, into columns."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from ...errors import said
from ...pipeline.output import BASE
from ..privacy import hide
from ..runs.disk import RunError
from .columns import Columns, number, parts_of
from .runlog import Evaluations, Event, Failure, Floats, Ints, RunLog, Series, TermLog

__all__ = ["read"]

_LOG: Final = "metrics.jsonl"
_CONFIG: Final = "config.json"
_KINDS: Final = ("step", "eval", "event")
_STEPS: Final = 10**15
"""More than any run takes."""


def read(folder: Path) -> RunLog:
    """The contents of a run's folder, however its process ended.

    An incomplete last line is left out, and so is a line that is not a record (`unreadable` has its number). If a run
    was resumed from an earlier step, the repeated steps replace the first ones.
    """
    path = folder / _LOG
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; expected the folder of a run, as `penalties train` writes it", 2)
    try:
        text = hide(path.read_bytes().decode("utf-8", "replace"))
    except FileNotFoundError:
        if not (folder / _CONFIG).is_file():
            raise RunError(f"{folder} is not the folder of a run: it has no {_LOG}", 2) from None
        # The run failed before its first line.
        text = ""
    except OSError as error:
        raise RunError(f"{path} cannot be read: {said(error)}") from error
    return _Reader(text).read(folder)


class _Reader:
    """The lines of one log, by kind."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.columns = Columns()
        self.evaluations: list[tuple[int, Mapping[str, Any]]] = []
        """The number of step records before each evaluation, and its record."""
        self.events: list[Event] = []
        self.reasons: dict[str, str] = {}
        """Why terms have no gradient."""
        self.inputs: dict[str, dict[str, None]] = {}
        """What the gradients of terms are measured with respect to."""
        self.unreadable: list[int] = []
        self.started: str | None = None
        self.torn = False

    def read(self, folder: Path) -> RunLog:
        *complete, rest = self.lines
        self.unreadable = [at for at, line in enumerate(complete, 1) if line and not self._add(line)]
        self.torn = bool(rest) and not self._add(rest)
        config = _config(folder)
        # Every step record has a step.
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
            folder=str(folder),
        )

    def _add(self, line: str) -> bool:
        """Add a line of any kind; returns False if it cannot be read."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(record, dict) or "kind" not in record:
            return False
        entry = cast("dict[str, Any]", record)
        if entry["kind"] not in _KINDS:
            # Written by a later version.
            return True
        step = entry.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < _STEPS:
            return False
        if entry["kind"] == "event":
            self.events.append(Event(step, str(entry.get("event", "")), str(entry.get("message", ""))))
            return True
        if not _is_loss(entry.get("loss")):
            return False
        if entry["kind"] == "eval":
            self.evaluations.append((self.columns.count, entry))
            return True
        if self.columns.count == 0 and isinstance(entry.get("time"), str):
            self.started = entry["time"]
        parts = parts_of(entry["loss"])
        for name, part in parts.items():
            if "grad_error" in part:
                self.reasons[name] = str(part["grad_error"])
            if isinstance(part.get("grad_norms"), dict):
                self.inputs.setdefault(name, {}).update(dict.fromkeys(part["grad_norms"]))
        self.columns.add(entry, parts)
        return True

    def _evaluated(self, steps: Ints, names: Sequence[str]) -> Evaluations:
        found: dict[int, Mapping[str, Any]] = {}
        for before, entry in self.evaluations:
            # If the run repeated earlier steps after this evaluation, the evaluation was or will be repeated too.
            if not np.any(steps[before:] < entry["step"]):
                found[entry["step"]] = entry["loss"]
        ordered = sorted(found.items())
        contributions = {name: _series([(step, _contribution(loss, name)) for step, loss in ordered]) for name in names}
        return Evaluations(
            _series([(step, number(loss["loss_total"])) for step, loss in ordered]),
            {name: series for name, series in contributions.items() if len(series)},
        )


class _Taken:
    """The columns of the steps that count: those that the run did not repeat later."""

    def __init__(self, columns: Columns, steps: Ints) -> None:
        self.columns = columns
        self.steps = steps
        later = np.append(np.minimum.accumulate(steps[::-1])[::-1][1:], np.iinfo(np.int64).max)
        self.kept = np.flatnonzero(steps < later[: len(steps)])
        self.counts = np.zeros(len(steps), bool)
        self.counts[self.kept] = True

    def series(self, what: str, term: str = "") -> Series:
        indices, values = self.columns.numbers(what, term)
        counts = self.counts[indices]
        return Series(self.steps[indices[counts]], values[counts])

    def term(self, name: str, reason: str | None, inputs: Mapping[str, None]) -> TermLog:
        value, grad_norm = self.series("value", name), self.series("grad_norm", name)
        weight = Series(value.steps, np.ones(len(value))) if name == BASE else self.series("weight", name)
        return TermLog(
            name=name,
            value=value,
            weight=weight,
            contribution=_times(value, weight),
            grad_norm=grad_norm,
            pull=_times(grad_norm, Series(weight.steps, np.abs(weight.values))),
            duration=self.series("duration", name),
            failures=[
                Failure(int(self.steps[index]), message)
                for index, message in sorted(self.columns.errors.get(name, ()))
                if self.counts[index]
            ],
            grad_error=reason,
            inputs=tuple(inputs),
        )

    def cosines(self, names: Sequence[str], inputs: Mapping[str, Mapping[str, None]]) -> dict[tuple[str, str], Series]:
        """By pair. Terms with no input in common have no cosine, though the log says 0."""
        found: dict[tuple[str, str], list[tuple[Ints, Floats]]] = {}
        rank = {name: index for index, name in enumerate(names)}
        for present, (indices, found_matrices) in self.columns.cosines.items():
            matrices = _matrices(found_matrices, len(present))
            kept = self.counts[indices] & ~np.isnan(matrices).all(axis=(1, 2))
            for i, first in enumerate(present):
                for j, second in enumerate(present[:i]):
                    pair = (first, second) if rank[first] < rank[second] else (second, first)
                    found.setdefault(pair, []).append((np.array(indices)[kept], matrices[kept, i, j]))
        apart = [pair for pair in found if _disjoint(inputs, *pair)]
        ordered = sorted(found.keys() - apart, key=lambda pair: (rank[pair[0]], rank[pair[1]]))
        return {pair: self._joined(found[pair]) for pair in ordered}

    def _joined(self, blocks: Sequence[tuple[Ints, Floats]]) -> Series:
        indices = np.concatenate([indices for indices, _ in blocks])
        order = np.argsort(indices, kind="stable")
        return Series(self.steps[indices[order]], np.concatenate([values for _, values in blocks])[order]).finite


def _disjoint(inputs: Mapping[str, Mapping[str, None]], first: str, second: str) -> bool:
    both = first in inputs and second in inputs
    return both and inputs[first].keys().isdisjoint(inputs[second])


def _matrices(read: Sequence[Any], size: int) -> Floats:
    """Matrices of this size, as one array; anything else becomes a matrix of NaN."""
    try:
        array = np.array(read, np.float64)
        if array.shape == (len(read), size, size):
            return array
    except (TypeError, ValueError, OverflowError):
        pass
    if len(read) == 1:
        return np.full((1, size, size), np.nan)
    return np.concatenate([_matrices([one], size) for one in read])


def _times(series: Series, weight: Series) -> Series:
    with np.errstate(over="ignore", invalid="ignore"):
        return Series(series.steps, _at(weight, series.steps) * series.values)


def _at(series: Series, steps: Ints) -> Floats:
    """The values at these steps; NaN at a step that the series does not have."""
    values = np.full(len(steps), np.nan)
    indices = np.searchsorted(series.steps, steps)
    inside = indices < len(series)
    inside[inside] = series.steps[indices[inside]] == steps[inside]
    values[inside] = series.values[indices[inside]]
    return values


def _series(pairs: Sequence[tuple[int, float | None]]) -> Series:
    there = [(step, value) for step, value in pairs if value is not None]
    return Series(np.array([step for step, _ in there], np.int64), np.array([value for _, value in there], np.float64))


def _is_loss(loss: Any) -> bool:
    """Whether this is the output of a pipeline, as `to_dict` returns it."""
    if not isinstance(loss, dict) or "loss_total" not in loss:
        return False
    whole = cast("dict[str, Any]", loss)
    terms = whole.get("regularizers", {})
    parts = cast("list[Any]", [whole.get("base_loss", {}), *(terms.values() if isinstance(terms, dict) else [None])])
    return all(isinstance(part, dict) for part in parts)


def _contribution(loss: Mapping[str, Any], name: str) -> float | None:
    return number(parts_of(loss).get(name, {}).get("value" if name == BASE else "contribution"))


def _config(folder: Path) -> dict[str, Any] | None:
    try:
        config = json.loads(hide((folder / _CONFIG).read_text("utf-8")))
    except (OSError, ValueError):
        # A report needs only the log.
        return None
    return cast("dict[str, Any]", config) if isinstance(config, dict) else None


def _in_order(found: Mapping[str, None], config: Mapping[str, Any] | None) -> list[str]:
    """The base loss, then terms in the order of the config, then others in the order of the log."""
    tables: Any = (config or {}).get("term", [])
    ranked = [BASE, *(str(table.get("name") or table.get("fn")) for table in tables)]
    return sorted(found, key=lambda name: ranked.index(name) if name in ranked else len(ranked))
