"""Several runs side by side: which ended lower, and what made the difference."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, cast

from ...pipeline.output import BASE
from .charts import lines
from .config_text import differences
from .figure import Figure
from .findings import Finding, Verdict
from .palette import run_class
from .runlog import EMPTY, RunLog, Series
from .scales import percent, seconds, shown, steps_shown
from .sentences import Name, RunName, Sentence, clauses, listed
from .sheet import Frame, Line
from .summary import Summary

__all__ = ["Contender", "Group", "compare", "comparison_figures", "contenders", "groups", "run_rows", "unlike"]

_SAME: Final = 0.01
"""Losses that differ by a smaller part are about the same."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A run among others."""

    letter: str
    name: str
    css: str
    run: RunLog
    summary: Summary
    group: int
    """Runs that differ in their seeds alone are one group."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ in their seeds alone, and where they ended."""

    members: Sequence[Contender]
    ends: Sequence[float]

    @property
    def end(self) -> float:
        """The mean over the seeds."""
        return fmean(self.ends)

    @property
    def title(self) -> Sentence:
        """The runs by name."""
        return listed([RunName(member.name) for member in self.members])

    @property
    def shown(self) -> str:
        """The mean, and how far the seeds spread."""
        if len(self.ends) == 1:
            return shown(self.end)
        spread = f"{shown(min(self.ends))} to {shown(max(self.ends))}"
        return f"{shown(self.end)} (mean of {len(self.ends)} seeds, {spread})"


def contenders(runs: Sequence[RunLog], summaries: Sequence[Summary], names: Sequence[str]) -> list[Contender]:
    """The runs with letters, and colours by group."""
    known: dict[str, int] = {}
    found: list[Contender] = []
    seeds: dict[int, int] = {}
    for place, (run, summary, name) in enumerate(zip(runs, summaries, names, strict=True)):
        key = f"run {place}" if run.config is None else json.dumps(_seedless(run.config), sort_keys=True)
        group = known.setdefault(key, len(known))
        css = run_class(group, seeds.setdefault(group, 0))
        seeds[group] += 1
        found.append(Contender(_letter(place), name, css, run, summary, group))
    return found


def _letter(place: int) -> str:
    again, letter = divmod(place, 26)
    return chr(ord("A") + letter) + (str(again) if again else "")


def _seedless(config: Mapping[str, Any], term: str | None = None) -> dict[str, Any]:
    """A config without its seed, and perhaps without one term."""
    plain = dict(config)
    if isinstance(plain.get("train"), dict):
        plain["train"] = {key: value for key, value in plain["train"].items() if key != "seed"}
    if term is not None and isinstance(plain.get("term"), list):
        tables = cast("list[dict[str, Any]]", plain["term"])
        plain["term"] = [table for table in tables if (table.get("name") or table.get("fn")) != term]
    return plain


def _metric(found: Sequence[Contender]) -> tuple[str, list[Series]]:
    """What runs are compared by: the held-out base loss where all have one, else that of training."""
    held_out = [one.run.evaluations.loss.finite for one in found]
    if all(len(series) for series in held_out):
        based = all(BASE in one.run.evaluations.contributions for one in found)
        return f"held-out {'base loss' if based else 'loss'}", held_out
    based = all(BASE in one.run.terms for one in found)
    return "base loss" if based else "loss", [one.run.loss.finite for one in found]


def groups(found: Sequence[Contender]) -> tuple[str, list[Group]]:
    """What is compared, and the groups that have it, lowest first."""
    what, series = _metric(found)
    held_out = what.startswith("held-out")
    members: dict[int, list[tuple[Contender, float]]] = {}
    for one, numbers in zip(found, series, strict=True):
        base = one.summary.base
        end = float(numbers.values[-1]) if held_out else None if base is None else base.last
        if end is not None:
            members.setdefault(one.group, []).append((one, end))
    made = [Group([one for one, _ in group], [end for _, end in group]) for group in members.values()]
    return what, sorted(made, key=lambda group: group.end)


def compare(found: Sequence[Contender]) -> Verdict:
    """Which run ended lowest, and what the runs show about the terms in which they differ."""
    what, ranked = groups(found)
    if not ranked:
        return Verdict(("No run has a loss to compare.",), [])
    best = ranked[0]
    headline: Sentence = (*best.title, f" ended lowest, with a {what} of {shown(best.end)}")
    findings = [Finding("outcome", (*best.title, f" {_ends(best)} with the lowest {what}: {best.shown}."))]
    if len(ranked) > 1:
        second, last = ranked[1], ranked[-1]
        findings.append(
            Finding("outcome", (*second.title, f" {_follow(second)}, with {second.shown}{_more(second, best)}."))
        )
        if len(best.ends) + len(second.ends) > 2 and max(best.ends) >= min(second.ends):
            findings.append(Finding("outcome", ("Their seeds spread further than they differ: it may be chance.",)))
        if len(ranked) > 2:
            findings.append(
                Finding("outcome", (*last.title, f" {_ends(last)} highest, at {last.shown}{_more(last, best)}."))
            )
    missing = [one for one in found if all(one not in group.members for group in ranked)]
    if missing:
        names = listed([RunName(one.name) for one in missing])
        findings.append(Finding("broken", (*names, " cannot be compared: no finite loss.")))
    learned = list(_without(ranked, what)) or list(_swept(found, ranked, what))
    told = [finding.headline for finding in learned if finding.headline]
    return Verdict((*headline, *([". ", *clauses(told)] if told else []), "."), [*findings, *learned])


def _ends(group: Group) -> str:
    return "ended" if len(group.members) == 1 else "ended, on average,"


def _follow(group: Group) -> str:
    return "follows" if len(group.members) == 1 else "follow"


def _more(group: Group, best: Group) -> str:
    more = (group.end - best.end) / abs(best.end) if best.end else 0.0
    return f" ({percent(more)} more)" if more >= _SAME / 20 else ""


def _without(ranked: Sequence[Group], what: str) -> Iterator[Finding]:
    """What taking one term out has changed, where the runs show it and differ in nothing else."""
    full = max(ranked, key=lambda group: len(group.members[0].run.terms))
    whole = full.members[0].run
    for group in ranked:
        other = group.members[0].run
        gone = [name for name in whole.terms if name not in other.terms]
        if len(gone) != 1 or whole.config is None or other.config is None:
            continue
        name = gone[0]
        if _seedless(whole.config, name) != _seedless(other.config, name):
            continue
        change = group.end - full.end
        ended = f" the {what} ended at {shown(group.end)} instead of {shown(full.end)}"
        if abs(change) <= _SAME * max(abs(full.end), abs(group.end)):
            text = ("Without ", Name(name), f"{ended}: it made no difference.")
            yield Finding("compared", text, (Name(name), " made no difference"))
        else:
            helped = "helped" if change > 0 else "cost"
            part = f", {percent(change / full.end)} {'higher' if change > 0 else 'lower'}" if full.end else ""
            text = ("Without ", Name(name), f"{ended}{part}: it {helped}.")
            yield Finding("compared", text, (Name(name), f" {helped}"))


def _swept(found: Sequence[Contender], ranked: Sequence[Group], what: str) -> Iterator[Finding]:
    """The best value of the one setting in which all groups differ."""
    if len(ranked) < 2 or any(one.run.config is None for one in found):
        return
    changed = differences([_seedless(group.members[0].run.config or {}) for group in ranked])
    if len(changed) == 1:
        key, values = next(iter(changed.items()))
        told = ", ".join(f"{value}: {shown(group.end)}" for value, group in zip(values, ranked, strict=True))
        text = f"The runs differ in {key} alone. {what.capitalize()} by its value, lowest first: {told}."
        yield Finding("compared", (text,))


def unlike(found: Sequence[Contender]) -> dict[str, list[str]]:
    """The settings in which the runs differ."""
    return differences([one.run.config for one in found])


def run_rows(found: Sequence[Contender]) -> list[list[str]]:
    """The cells of each run in the table: steps, losses, failures, time."""
    rows: list[list[str]] = []
    for one in found:
        base, held_out = one.summary.base, one.run.evaluations.loss.finite
        rate = one.summary.tokens / one.summary.seconds if one.summary.seconds else 0.0
        rows.append(
            [
                steps_shown(len(one.run.steps)),
                "–" if base is None else shown(base.last),
                shown(float(held_out.values[-1])) if len(held_out) else "–",
                steps_shown(len(one.summary.broken)),
                steps_shown(one.summary.failures),
                seconds(one.summary.seconds) if one.summary.seconds else "–",
                steps_shown(rate) if rate else "–",
            ]
        )
    return rows


def comparison_figures(found: Sequence[Contender], points: int) -> list[Figure]:
    """The runs on the same axes: losses, gradient, and the value of every term."""
    names = dict.fromkeys(name for one in found for name in one.run.terms if name != BASE)
    charts: list[tuple[str, str, bool, list[Series]]] = [
        ("Base loss", "in training, without the other terms", False, [one.run.loss for one in found]),
        (
            "Held-out loss",
            "the base loss on data that is not trained on",
            False,
            [one.run.evaluations.loss for one in found],
        ),
        ("Total loss", "compares only where weights are equal", False, [one.run.total for one in found]),
        ("Gradient norm", "of the total", True, [one.run.grad_norm for one in found]),
    ]
    for name in names:
        values = [one.run.terms[name].value if name in one.run.terms else EMPTY for one in found]
        charts.append((name, "value, without its weight", False, values))
    frame = Frame.around([part for one in found for part in (one.run.steps, one.run.evaluations.total.steps)], points)
    figures: list[Figure] = []
    for title, note, log, series in charts:
        drawn = [
            Line(one.name, one.css, numbers, letter=one.letter)
            for one, numbers in zip(found, series, strict=True)
            if len(numbers)
        ]
        if drawn:
            figures.append(lines(title, drawn, frame=frame, log=log, note=note))
    return figures
