"""What a search has found: its trials, the best of them, and the front between the metrics."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ...encoding import decode, encode
from ...files import read_plain, write_atomically
from ...pipeline.table import table
from ..ablation.statistics import on_front
from ..problems import counted, joined
from ..runs.disk import RunError, validated, writing
from ..train.progress import short
from .goals import Constraint, Goal

__all__ = [
    "Found",
    "Trial",
    "cells",
    "found_in",
    "headline",
    "holds_search",
    "sentences",
    "shown",
    "value_shown",
    "write",
]

_SUMMARY: Final = "search.json"


class Trial(NamedTuple):
    """One run of a search."""

    folder: Path
    settings: Mapping[str, Any]
    metrics: Mapping[str, float]
    """Of the goals and constraints; without those that are not finite."""
    error: str | None = None


class Found(NamedTuple):
    """The trials of a search that ended, in their order."""

    goals: Sequence[Goal]
    constraints: Sequence[Constraint]
    total: int
    """How many trials there are to be."""
    trials: Sequence[Trial]

    @property
    def axes(self) -> list[Goal]:
        """What trials are traded off by: the goals, and the metrics that have a limit."""
        known = {goal.name: goal for goal in self.goals}
        for limit in self.constraints:
            known.setdefault(limit.name, limit.goal)
        return list(known.values())

    def complete(self, trial: Trial) -> bool:
        """Whether a trial has all metrics."""
        return all(axis.name in trial.metrics for axis in self.axes)

    def allowed(self, trial: Trial) -> bool:
        """Whether a trial breaks no constraint."""
        return self.complete(trial) and all(one.excess(trial.metrics[one.name]) <= 0 for one in self.constraints)

    @property
    def front(self) -> list[Trial]:
        """The trials that no other beats in one metric without losing in another, by the first goal."""
        there = [trial for trial in self.trials if self.complete(trial)]
        if not there:
            return []
        points = [[axis.oriented(trial.metrics[axis.name]) for axis in self.axes] for trial in there]
        best = [trial for trial, which in zip(there, on_front(np.array(points)), strict=True) if which]
        return sorted(best, key=self.order)

    @property
    def best(self) -> Trial | None:
        """The best by the first goal that breaks no constraint; None if there is none."""
        return min(filter(self.allowed, self.trials), key=self.order, default=None)

    def order(self, trial: Trial) -> float:
        """What complete trials are sorted by: the first goal, better ones first."""
        return self.goals[0].oriented(trial.metrics[self.goals[0].name])


def holds_search(folder: Path) -> bool:
    """Whether a folder has a search."""
    return (folder / _SUMMARY).is_file()


def ended_in(folder: Path) -> int:
    """How many trials of the search in a folder ended; 0 if that cannot be read, and is written again."""
    with contextlib.suppress(RunError):
        return len(found_in(folder).trials)
    return 0


def write(folder: Path, found: Found) -> None:
    """Write the trials so far; a reader never sees an incomplete file."""
    described = {
        "goals": [vars(one) for one in found.goals],
        "constraints": [vars(one) for one in found.constraints],
        "total": found.total,
        "runs": [{**trial._asdict(), "folder": trial.folder.name} for trial in found.trials],
    }
    with writing(folder / _SUMMARY):
        write_atomically(folder / _SUMMARY, json.dumps(encode(described), indent=2) + "\n")


def found_in(folder: Path) -> Found:
    """The search in a folder; one that cannot be read is an error."""
    path = folder / _SUMMARY
    try:
        given: Any = decode(json.loads(read_plain(path)))
        trials = [{**run, "folder": folder / run["folder"]} for run in given["runs"]]
        whole = {key: given[key] for key in ("goals", "constraints", "total")}
        found = validated(Found, {**whole, "trials": trials})
        if not found.goals:
            raise ValueError("goals: expected at least one")
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = f"{path} cannot be read ({type(error).__name__}: {error})"
        raise RunError(f"{problem}; resume the search to write it again", 2) from error


def headline(found: Found) -> str:
    """The best trial, and what it was found with."""
    best, goal = found.best, found.goals[0]
    ended = f"{counted(len(found.trials), 'trial')}{' so far' if len(found.trials) < found.total else ''}"
    limits = joined(map(str, found.constraints), "and") if found.constraints else ""
    if best is None:
        kept = f" that keeps to {limits}" if limits else ""
        return f"None of {ended} ended with a finite {goal.name}{kept}."
    values = joined((f"{key} {value_shown(value)}" for key, value in best.settings.items()), "and")
    kind = "highest" if goal.highest else "lowest"
    # One that breaks a limit may well be lower.
    name = f"{goal.name} with {limits}" if limits else goal.name
    return f"The {kind} {name} of {ended} is {short(best.metrics[goal.name])}, with {values} ({best.folder.name})."


def sentences(found: Found) -> list[str]:
    """What to make of it."""
    lines: list[str] = []
    if len(found.axes) > 1 and found.front:
        names = joined((axis.name for axis in found.axes), "and")
        many = counted(len(found.front), "trial")
        lines.append(f"{many} on the front of {names}: no other is better in one and as good in the rest.")
    broken = sum(found.complete(trial) and not found.allowed(trial) for trial in found.trials)
    if broken:
        verb = "breaks" if broken == 1 else "break"
        lines.append(f"{counted(broken, 'trial')} {verb} {joined(map(str, found.constraints), 'or')}.")
    lost = [trial for trial in found.trials if not found.complete(trial)]
    if lost:
        lines.append(f"{counted(len(lost), 'trial')} failed, or ended with a metric that is missing or not finite.")
    if found.trials:
        lines.append(
            "Each trial is one run with one seed, and the best of many looks better than it is: compare its values "
            "with those of the config by penalties ablate --sweep, with several seeds."
        )
    return lines


def cells(found: Found, trial: Trial, keys: Sequence[str], best: Sequence[Trial]) -> list[str]:
    """The cells of a trial: its values, its metrics, and where it stands."""
    values = [value_shown(trial.settings.get(key)) for key in keys]
    metrics = [short(trial.metrics.get(axis.name)) for axis in found.axes]
    if not found.complete(trial):
        standing = ["failed" if trial.error else "not finite"]
    else:
        broken = [str(one) for one in found.constraints if one.excess(trial.metrics[one.name]) > 0]
        standing = [*(["front"] if trial in best else []), *([f"breaks {joined(broken, 'and')}"] if broken else [])]
    return [trial.folder.name, *values, *metrics, "; ".join(standing)]


def value_shown(value: Any) -> str:
    """A value of a trial in a few characters."""
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def shown(found: Found, most: int = 10) -> list[str]:
    """The front as a table, or with one metric the best trials, and what to make of it."""
    best = found.front
    chosen = best if len(found.axes) > 1 else sorted(filter(found.complete, found.trials), key=found.order)
    keys = list(dict.fromkeys(key for trial in found.trials for key in trial.settings))
    header = ["trial", *keys, *(axis.name for axis in found.axes), ""]
    lines = [cells(found, trial, keys, best) for trial in chosen[:most]]
    failed = [f"{trial.folder.name}: {trial.error}" for trial in found.trials if trial.error]
    return [*(table(header, lines) if lines else []), *failed, headline(found), *sentences(found)]
