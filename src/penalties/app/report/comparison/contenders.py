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

__all__ = ["Contender", "Difference", "Group", "Ranking", "between", "contenders", "ranking", "seedless"]

_SAME: Final = 0.01
"""Losses with a smaller relative difference are about the same."""
_CLEAR: Final = 2.0
"""A mean difference of more than this many standard errors does not count as chance."""


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
    at: int | None
    """The last step that all have, if their lengths differ."""
    groups: Sequence[Group]
    """The groups that ended with a finite loss, lowest first."""
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
    """The runs ranked by the held-out base loss, if all have one at a common step, or else by the training loss."""
    lost = [one for one in found if one.summary.lost_from is not None]
    ended = [one for one in found if one.last is not None and one not in lost]
    common = min((one.last for one in ended if one.last is not None), default=0)
    ended = [one for one in ended if one.run.steps[0] <= common]
    apart = [one for one in found if one not in ended and one not in lost]
    what, numbers = _held_out(ended, common) or _trained(ended, common)
    members: dict[int, list[tuple[Contender, float]]] = {}
    for one, end in zip(ended, numbers, strict=True):
        if math.isfinite(end):
            members.setdefault(one.group, []).append((one, end))
        else:
            lost.append(one)
    made = [Group([one for one, _ in group], [end for _, end in group]) for group in members.values()]
    at = common if any(one.last != common for one in [*ended, *apart] if one.last is not None) else None
    return Ranking(what, at, sorted(made, key=lambda group: group.end), lost, apart)


def _held_out(ended: Sequence[Contender], common: int) -> tuple[str, list[float]] | None:
    """The held-out losses at the last step at which all were evaluated; None if there is no such step."""
    series = [one.run.evaluations.loss.finite for one in ended]
    steps = [{int(step) for step in part.steps if step <= common} for part in series]
    shared = functools.reduce(set[int].intersection, steps) if steps else set[int]()
    if not shared:
        return None
    based = all(BASE in one.run.evaluations.contributions for one in ended)
    return f"held-out {'base loss' if based else 'loss'}", [part.at(max(shared)) or 0.0 for part in series]


def _trained(ended: Sequence[Contender], common: int) -> tuple[str, list[float]]:
    """The training losses: means over the last twentieth of the steps that all have."""
    based = all(BASE in one.run.terms for one in ended)
    found: list[float] = []
    for one in ended:
        spike = one.summary.spike
        loss = one.run.loss.without(None if spike is None else spike.step)
        inside = int(np.searchsorted(loss.steps, common, side="right"))
        both = ends(Series(loss.steps[:inside], loss.values[:inside]))
        found.append(math.nan if both is None else both.last)
    return "base loss" if based else "loss", found


@dataclass(frozen=True, slots=True)
class Difference:
    """How much higher the second group ended than the first."""

    mean: float
    error: float | None
    """The standard error of the mean; None with one seed."""
    seeds: int
    size: float
    """The larger of the two losses."""

    @property
    def small(self) -> bool:
        """Whether both are about the same, also within the error over their seeds."""
        return max(abs(self.mean), _CLEAR * (self.error or 0.0)) <= _SAME * self.size

    @property
    def chance(self) -> bool:
        """Whether the seeds vary too much to tell."""
        return not self.small and self.error is not None and abs(self.mean) <= _CLEAR * self.error


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
        apart = [b - a for a, b in pairs]
        return Difference(float(np.mean(apart)), (_variance(apart) / len(apart)) ** 0.5, len(apart), size)
    counts = [len(first.ends), len(second.ends)]
    freedom = sum(counts) - len(counts)
    error = None
    if freedom:
        # If one group has a single seed, the variance of the other stands in for both.
        squares = sum(_variance(group.ends) * (len(group.ends) - 1) for group in (first, second) if len(group.ends) > 1)
        error = (squares / freedom * sum(1 / count for count in counts)) ** 0.5
    return Difference(second.end - first.end, error, min(counts), size)


def _variance(numbers: Sequence[float]) -> float:
    """Infinite or NaN where the numbers are too large for it."""
    return float(np.var(numbers, ddof=1))
