"""The runs of a comparison: how far each got, how it ended, which differ only in their seeds, and by how much."""

import functools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from ....pipeline.output import BASE
from ..charts.columns import Columns
from ..charts.palette import run_class
from ..numbers import shown
from ..runlog import RunLog, Series
from ..summary import Summary, ends
from ..verdict.sentences import RunName, Sentence, some

__all__ = ["Contender", "Difference", "Group", "Ranking", "between", "common_step", "contenders", "ranking", "seedless"]

_SAME: Final = 0.01
"""Losses with a smaller relative difference are about the same."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A run in a comparison."""

    letter: str
    name: str
    css: str
    run: RunLog
    summary: Summary
    columns: Columns
    """What its charts draw."""
    group: int
    """The index of its group: runs that differ only in their seeds."""

    @property
    def seed(self) -> Any:
        """The seed in the config; None if it has none."""
        return self.run.training("seed")

    @property
    def last(self) -> int | None:
        """The last step; None if there is none."""
        return int(self.run.steps[-1]) if len(self.run.steps) else None

    @property
    def unfinished(self) -> int | None:
        """How many steps its config asks for, if it has fewer and did not end early; else None."""
        wanted = self.run.wanted
        return wanted if wanted is not None and (self.last or 0) < wanted and not self.run.early else None


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ only in their seeds, and their final losses."""

    members: Sequence[Contender]
    ends: Sequence[float]

    @property
    def each(self) -> list[tuple[Contender, float]]:
        """The runs with their losses."""
        return list(zip(self.members, self.ends, strict=True))

    @property
    def end(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.ends))

    @property
    def title(self) -> Sentence:
        """The runs by name."""
        return some([RunName(member.name) for member in self.members])

    @property
    def shown(self) -> str:
        """The mean, and the range over the seeds."""
        if len(self.ends) == 1:
            return shown(self.end)
        spread = f"{shown(min(self.ends))} to {shown(max(self.ends))}"
        return f"{shown(self.end)} (mean of {len(self.ends)} seeds, {spread})"


@dataclass(frozen=True, slots=True)
class Ranking:
    """The quantity that runs are compared by, the step, and the order of the runs."""

    what: str
    step: int
    """Where runs are compared."""
    at: int | None
    """The same, unless it is the last step of every run."""
    groups: Sequence[Group]
    """The groups with a finite loss there, lowest first."""
    held_out: bool
    """Whether the quantity is a loss on held-out data."""
    based: bool
    """Whether it is the base loss; otherwise it is the total, which depends on the terms and their weights."""
    lost: Sequence[Contender]
    """The runs whose loss is not finite at the end."""
    apart: Sequence[Contender]
    """The runs without any step, or with none in common with the others."""


def contenders(runs: Sequence[RunLog], summaries: Sequence[Summary], names: Sequence[str]) -> list[Contender]:
    """The runs, each with a letter and the colour of its group."""
    known: dict[tuple[str, int], int] = {}
    found: list[Contender] = []
    seeds: dict[int, int] = {}
    again: Counter[str] = Counter()
    for index, (run, summary, name) in enumerate(zip(runs, summaries, names, strict=True)):
        key = f"run {index}" if run.config is None else json.dumps(seedless(run.config), sort_keys=True)
        whole = f"{run.training('seed')} {key}"
        # A second run with the same seed goes into another group: what differs is not in the config.
        group = known.setdefault((key, again[whole]), len(known))
        again[whole] += 1
        css = run_class(group, seeds.setdefault(group, 0))
        seeds[group] += 1
        letter = _letter(index)
        found.append(Contender(letter, name, css, run, summary, Columns(letter, run), group))
    return found


def _letter(index: int) -> str:
    again, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(again) if again else "")


def seedless(config: Mapping[str, Any], term: str | None = None) -> dict[str, Any]:
    """A config without its seed, and without a term if one is given."""
    plain = dict(config)
    if isinstance(plain.get("train"), dict):
        plain["train"] = {key: value for key, value in plain["train"].items() if key != "seed"}
    if term is not None and isinstance(plain.get("term"), list):
        tables = cast("list[dict[str, Any]]", plain["term"])
        plain["term"] = [table for table in tables if (table.get("name") or table.get("fn")) != term]
    return plain


def ranking(found: Sequence[Contender]) -> Ranking:
    """The runs by the held-out base loss at the last evaluation that all have, or else by the training loss."""
    lost = [one for one in found if one.summary.lost_from is not None]
    ended = [one for one in found if one.last is not None and one not in lost]
    common = min((one.last for one in ended if one.last is not None), default=0)
    ended = [one for one in ended if one.run.steps[0] <= common]
    apart = [one for one in found if one not in ended and one not in lost]
    held_out = _held_out(ended, common)
    based, step, numbers = held_out or _trained(ended, common)
    what = f"{'held-out ' if held_out else ''}{'base loss' if based else 'loss'}"
    members: dict[int, list[tuple[Contender, float]]] = {}
    for one, end in zip(ended, numbers, strict=True):
        if math.isfinite(end):
            members.setdefault(one.group, []).append((one, end))
        else:
            lost.append(one)
    made = [Group([one for one, _ in group], [end for _, end in group]) for group in members.values()]
    at = step if any(one.last != step for one in [*ended, *apart] if one.last is not None) else None
    made.sort(key=lambda group: group.end)
    return Ranking(what, step, at, made, held_out is not None, based, lost, apart)


def common_step(series: Sequence[Series], last: int) -> int | None:
    """The last step up to this one at which all series have a number; None if only before training, or nowhere."""
    steps = [{int(step) for step in part.steps if 0 < step <= last} for part in series]
    shared = functools.reduce(set[int].intersection, steps) if steps else set[int]()
    return max(shared, default=None)


def _held_out(ended: Sequence[Contender], common: int) -> tuple[bool, int, list[float]] | None:
    """The held-out losses at the last step at which all were evaluated; None if there is no such step.

    Whether they are base losses comes first.
    """
    based = all(BASE in one.run.evaluations.contributions for one in ended)
    series = [(one.run.evaluations.loss if based else one.run.evaluations.total).finite for one in ended]
    step = common_step(series, common)
    return None if step is None else (based, step, [part.at(step) or 0.0 for part in series])


def _trained(ended: Sequence[Contender], common: int) -> tuple[bool, int, list[float]]:
    """The training losses: means over the last twentieth of the steps that all have."""
    based = all(BASE in one.run.terms for one in ended)
    found: list[float] = []
    for one in ended:
        spike = one.summary.spike
        loss = (one.run.loss if based else one.run.total).without(None if spike is None else spike.step)
        inside = int(np.searchsorted(loss.steps, common, side="right"))
        both = ends(Series(loss.steps[:inside], loss.values[:inside]))
        found.append(math.nan if both is None else both.last)
    return based, common, found


@dataclass(frozen=True, slots=True)
class Difference:
    """How much higher the second group ended than the first."""

    mean: float
    parts: Sequence[float]
    """Seed by seed where both have the same; else the smallest and the largest that two of their runs have."""
    seeds: int
    size: float
    """The larger of the two losses."""

    @property
    def small(self) -> bool:
        """Whether both are about the same with every seed."""
        return max(map(abs, self.parts)) <= _SAME * self.size

    @property
    def mixed(self) -> bool:
        """Whether it depends on the seed which one is lower."""
        return not self.small and min(self.parts) <= 0 <= max(self.parts)


def between(first: Group, second: Group) -> Difference:
    """The difference seed by seed over the seeds that both have, if there are several; else that of the means."""
    by_seed = {member.seed: end for member, end in zip(second.members, second.ends, strict=True)}
    pairs = [
        (end, by_seed[member.seed])
        for member, end in zip(first.members, first.ends, strict=True)
        if member.seed is not None and member.seed in by_seed
    ]
    size = max(abs(first.end), abs(second.end))
    if len(pairs) > 1:
        parts = [b - a for a, b in pairs]
        return Difference(float(np.mean(parts)), parts, len(parts), size)
    parts = [min(second.ends) - max(first.ends), max(second.ends) - min(first.ends)]
    return Difference(second.end - first.end, parts, min(len(first.ends), len(second.ends)), size)
