"""Reading a run's folder, `metrics.jsonl` and `config.json`, into columns."""

import dataclasses
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np

from ...files import read_plain
from ...pipeline.output import BASE
from ..privacy import hide
from ..problems import toml_value
from ..runs.disk import RunError, reason
from ..runs.environment import environments_in
from ..runs.run import Run
from .runlog import EMPTY, Evaluations, Event, Failure, Floats, Ints, RunLog, Series, TermLog

if TYPE_CHECKING:
    from .records import Loss, LossRecord, Part, SamplesRecord, TextRecord

__all__ = ["Lines", "number", "read", "run_of"]

_LOG: Final = "metrics.jsonl"
_CONFIG: Final = "config.json"

_OF_RUN: Final = ("seconds", "tokens", "learning_rate", "memory", "loss_total", "total_grad_norm")
_OF_PART: Final = ("value", "weight", "grad_norm")
_CUSTOM: Final = "custom/"
"""Before the name of a term's own metric."""
_Layout: TypeAlias = tuple[tuple[tuple[str, tuple[str, ...]], ...], tuple[str, ...]]


def read(folder: Path) -> RunLog:
    """The contents of a run's folder, however its process ended.

    An incomplete last line is left out, and so is a line that is not a record (`unreadable` has its number). If a run
    was resumed from an earlier step, the repeated steps replace the first ones.
    """
    path = folder / _LOG
    if not os.path.isdir(folder):
        raise RunError(f"{folder} is not a folder; expected the folder of a run, as `penalties train` writes it", 2)
    try:
        text = hide(read_plain(path).decode("utf-8", "replace"))
    except FileNotFoundError:
        if not Run(folder).exists():
            raise RunError(f"{folder} is not the folder of a run: it has no {_LOG}", 2) from None
        # The run failed before its first line.
        text = ""
    except OSError as error:
        raise RunError(f"{path} cannot be read: {reason(error)}") from error
    *complete, rest = text.split("\n")
    log = Lines()
    unreadable = [at for at, line in enumerate(complete, 1) if line and not log.add(line)]
    torn = bool(rest) and not log.add(rest)
    run = run_of(log, config=_config(folder), unreadable=unreadable, torn=torn)
    return dataclasses.replace(run, environments=environments_in(folder), folder=str(folder))


def run_of(
    log: "Lines",
    *,
    config: Mapping[str, Any] | None = None,
    unreadable: Sequence[int] = (),
    torn: bool = False,
) -> RunLog:
    """The run that these lines tell of."""
    names = _in_order(log.terms, config)
    taken = _Taken(log)
    return RunLog(
        steps=taken.steps[taken.counts],
        total=taken.series("loss_total"),
        grad_norm=taken.series("total_grad_norm"),
        seconds=taken.series("seconds"),
        tokens=taken.series("tokens"),
        learning_rate=taken.series("learning_rate"),
        memory=taken.series("memory"),
        terms={name: taken.term(name) for name in names},
        cosines=taken.cosines(names),
        evaluations=_evaluations(log.evaluations, taken.steps, names),
        spoken={
            one["step"]: [(each["prompt"], each["text"]) for each in one.get("samples", ())]
            for one in log.samples.values()
        },
        task=_task(log.samples),
        examples=log.examples,
        events=log.events,
        config=config,
        started=log.started,
        torn=torn,
        unreadable=unreadable,
    )


class Lines:
    """The lines of one log: what a report needs of their records. The index of a record counts step records only."""

    def __init__(self) -> None:
        """Without a line yet."""
        from .records import parse

        self._parse = parse
        self.steps: list[int] = []
        self.numbers: dict[_Layout, tuple[list[int], list[Any]]] = {}
        """By the names of terms and their metrics, and of those with durations: indices of records, and their numbers.

        One list of numbers takes a third of the memory of the records, and of the time of a list for each column.
        """
        self.cosines: defaultdict[tuple[str, ...], tuple[list[int], list[Any]]] = defaultdict(lambda: ([], []))
        """By the names of rows and columns: the indices of records, and their matrices."""
        self.terms: dict[str, None] = {}
        """The names of terms, in the order of their first appearance."""
        self.errors: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self.reasons: dict[str, str] = {}
        """Why terms have no gradient."""
        self.inputs: dict[str, dict[str, None]] = {}
        """What the gradients of terms are measured with respect to."""
        self.evaluations: list[tuple[int, LossRecord]] = []
        """The number of step records before each evaluation, and its record."""
        self.samples: dict[int, SamplesRecord] = {}
        """By step: a run that was resumed repeats them."""
        self.examples: dict[int, list[TextRecord]] = {}
        """Of the first evaluation and of the last, by step."""
        self.events: list[Event] = []
        self.started: str | None = None

    def add(self, line: str) -> bool:
        """Add a line of any kind; returns False if it cannot be read."""
        try:
            record = self._parse(line)
        except ValueError:
            return False
        if record is None:
            return True
        if record["kind"] == "event":
            kind, message, best = str(record.get("event", "")), str(record.get("message", "")), record.get("best")
            best = best if isinstance(best, int) else None
            self.events.append(Event(record["step"], kind, message, best, record.get("early") is True))
        elif record["kind"] == "samples":
            self.samples[record["step"]] = record
        elif record["kind"] == "eval":
            self._add_examples(record["step"], record.pop("examples", []))
            self.evaluations.append((len(self.steps), record))
        else:
            self._add_step(record)
        return True

    def _add_examples(self, step: int, found: "list[TextRecord]") -> None:
        # The first; but a run that was resumed from an earlier step repeats what is later.
        kept = [(at, texts) for at, texts in self.examples.items() if at < step]
        self.examples = dict([*kept[:1], (step, found)] if found else kept)

    def _add_step(self, record: "LossRecord") -> None:
        index, loss, durations = len(self.steps), record["loss"], record.get("durations", {})
        if index == 0 and isinstance(record.get("time"), str):
            self.started = record.get("time")
        parts = _parts(loss)
        customs = {name: _custom(part) for name, part in parts.items()}
        layout = tuple((name, tuple(custom)) for name, custom in customs.items()), tuple(durations)
        if layout not in self.numbers:
            self.terms.update(dict.fromkeys(parts))
            self.numbers[layout] = [], []
        indices, numbers = self.numbers[layout]
        indices.append(index)
        # In the order of _OF_RUN and _OF_PART.
        numbers += (record.get("seconds"), record.get("tokens"), record.get("learning_rate"), record.get("memory"))
        numbers += (loss["loss_total"], loss.get("total_grad_norm"))
        for name, part in parts.items():
            numbers += (part.get("value"), part.get("weight"), part.get("grad_norm"), *customs[name].values())
            if "grad_error" in part:
                self.reasons[name] = str(part["grad_error"])
            if "grad_norms" in part and isinstance(part["grad_norms"], dict):
                norms = cast("dict[str, Any]", part["grad_norms"])
                self.inputs.setdefault(name, {}).update(dict.fromkeys(norms))
        numbers += durations.values()
        for name, message in record.get("errors", {}).items():
            if isinstance(message, str):
                self.terms[name] = None
                self.errors[name].append((index, message))
        if "cosines" in loss:
            indices, matrices = self.cosines[tuple(parts)]
            indices.append(index)
            matrices.append(loss["cosines"])
        self.steps.append(record["step"])

    def columns(self) -> dict[tuple[str, str], list[tuple[list[int], list[Any]]]]:
        """By quantity and term: the values of the records that may have one, in one or several blocks."""
        found: defaultdict[tuple[str, str], list[tuple[list[int], list[Any]]]] = defaultdict(list)
        for (terms, timed), (indices, numbers) in self.numbers.items():
            keys = [(what, "") for what in _OF_RUN]
            for name, customs in terms:
                keys += [(what, name) for what in _OF_PART]
                keys += [(f"{_CUSTOM}{metric}", name) for metric in customs]
            keys += [("duration", name) for name in timed]
            for column, key in enumerate(keys):
                found[key].append((indices, numbers[column :: len(keys)]))
        return found


class _Taken:
    """The steps of a log that count: those that the run did not repeat later."""

    def __init__(self, log: Lines) -> None:
        self._log = log
        self._columns = log.columns()
        self.steps: Ints = np.array(log.steps, np.int64)
        self.counts = self.steps < _ahead(self.steps)[1:]

    def series(self, what: str, term: str = "") -> Series:
        """The numbers of a quantity."""
        blocks = self._columns.get((what, term), [])
        return self._joined([_series(indices, values) for indices, values in blocks])

    def _joined(self, blocks: Sequence[Series]) -> Series:
        """One series from parts that have the indices of records instead of steps."""
        if not blocks:
            return EMPTY
        indices = np.concatenate([block.steps for block in blocks])
        values = np.concatenate([block.values for block in blocks])
        order = np.argsort(indices, kind="stable")
        order = order[self.counts[indices[order]]]
        return Series(self.steps[indices[order]], values[order])

    def term(self, name: str) -> TermLog:
        log, value, grad_norm = self._log, self.series("value", name), self.series("grad_norm", name)
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
                Failure(int(self.steps[index]), message) for index, message in log.errors[name] if self.counts[index]
            ],
            grad_error=log.reasons.get(name),
            inputs=tuple(log.inputs.get(name, ())),
            metrics={
                what.removeprefix(_CUSTOM): self.series(what, name)
                for what, of in self._columns
                if of == name and what.startswith(_CUSTOM)
            },
        )

    def cosines(self, names: Sequence[str]) -> dict[tuple[str, str], Series]:
        """By pair. Terms with no input in common have no cosine, though the log says 0."""
        found: dict[tuple[str, str], list[Series]] = {}
        rank = {name: index for index, name in enumerate(names)}
        for present, (indices, matrices) in self._log.cosines.items():
            array = _matrices(matrices, len(present))
            for i, first in enumerate(present):
                for j, second in enumerate(present[:i]):
                    pair = (first, second) if rank[first] < rank[second] else (second, first)
                    found.setdefault(pair, []).append(Series(np.array(indices), array[:, i, j]))
        apart = [pair for pair in found if _disjoint(self._log.inputs, *pair)]
        ordered = sorted(found.keys() - apart, key=lambda pair: (rank[pair[0]], rank[pair[1]]))
        return {pair: self._joined(found[pair]).finite for pair in ordered}


def number(found: Any) -> float | None:
    """A number from a log, in which NaN and infinity are strings; None for anything else."""
    if isinstance(found, str):
        return float(found) if found in ("NaN", "Infinity", "-Infinity") else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    # Converted through text, an integer of 400 digits becomes infinite instead of raising.
    return float(found) if isinstance(found, float) or abs(found) < 2**53 else float(str(found))


def _series(steps: Sequence[int], found: Sequence[Any]) -> Series:
    """The numbers among these values, one for each step."""
    at = np.array(steps, np.int64)
    if set(map(type, found)) == {float}:
        return Series(at, np.array(found, np.float64))
    values = [number(value) for value in found]
    there = np.array([value is not None for value in values], bool)
    return Series(at[there], np.array([value for value in values if value is not None], np.float64))


def _evaluations(found: "Sequence[tuple[int, LossRecord]]", steps: Ints, names: Sequence[str]) -> Evaluations:
    # If the run repeated earlier steps after an evaluation, the evaluation was or will be repeated too.
    ahead = _ahead(steps)
    losses = {one["step"]: one["loss"] for before, one in found if one["step"] < ahead[before]}
    at = sorted(losses)
    contributions = {name: _series(at, [_contribution(losses[step], name) for step in at]) for name in names}
    return Evaluations(
        _series(at, [losses[step]["loss_total"] for step in at]),
        {name: series for name, series in contributions.items() if len(series)},
        _held_out_metrics({step: _parts(losses[step]) for step in at}),
        {name: _series(at, [_parts(losses[step]).get(name, {}).get("value") for step in at]) for name in names},
    )


def _held_out_metrics(parts: "Mapping[int, Mapping[str, Part]]") -> dict[tuple[str, str], Series]:
    found: defaultdict[tuple[str, str], dict[int, Any]] = defaultdict(dict)
    for step, terms in parts.items():
        for name, part in terms.items():
            for metric, value in _custom(part).items():
                found[name, metric][step] = value
    return {key: _series(list(values), list(values.values())) for key, values in found.items()}


def _custom(part: "Part") -> dict[str, Any]:
    """The own metrics of a term."""
    found = part.get("custom")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _ahead(steps: Ints) -> Ints:
    """The lowest step from each record on, and a number beyond all steps after the last."""
    return np.append(np.minimum.accumulate(steps[::-1])[::-1], np.iinfo(np.int64).max)


def _task(found: "Mapping[int, SamplesRecord]") -> dict[str, Series]:
    names = dict.fromkeys(name for one in found.values() for name in one.get("metrics", {}))
    at = sorted(found)
    return {name: _series(at, [found[step].get("metrics", {}).get(name) for step in at]) for name in names}


def _contribution(loss: "Loss", name: str) -> Any:
    return _parts(loss).get(name, {}).get("value" if name == BASE else "contribution")


def _parts(loss: "Loss") -> "dict[str, Part]":
    """The base loss, if there is one, then the terms by name: the order of the cosine matrix."""
    return {**({BASE: loss["base_loss"]} if "base_loss" in loss else {}), **loss.get("regularizers", {})}


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
    if np.array_equal(series.steps, steps):
        return series.values
    values = np.full(len(steps), np.nan)
    indices = np.searchsorted(series.steps, steps)
    inside = indices < len(series)
    inside[inside] = series.steps[indices[inside]] == steps[inside]
    values[inside] = series.values[indices[inside]]
    return values


def _config(folder: Path) -> dict[str, Any] | None:
    """The config; None if it is not one, since a report needs only the log."""
    from .records import check_config

    try:
        config: Any = json.loads(hide(read_plain(folder / _CONFIG).decode()))
        check_config(config)
        toml_value(config)  # to see whether it can be shown: it may be nested too deeply
    except (OSError, ValueError, RecursionError):
        return None
    return config


def _in_order(found: Mapping[str, None], config: Mapping[str, Any] | None) -> list[str]:
    """The base loss, then terms in the order of the config, then others in the order of the log."""
    tables: Any = (config or {}).get("term", [])
    ranked = [BASE, *(str(table.get("name") or table.get("fn")) for table in tables)]
    return sorted(found, key=lambda name: ranked.index(name) if name in ranked else len(ranked))
