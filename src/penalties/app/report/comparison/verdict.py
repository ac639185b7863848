"""The verdict of a comparison: which run ended lowest, and what made the difference."""

from collections.abc import Iterator, Sequence
from typing import Final

from ...problems import counted
from ..config_text import differences
from ..numbers import percent, shown, steps_shown
from ..verdict.findings import Finding, Verdict
from ..verdict.sentences import Name, RunName, Sentence, clauses, listed, some
from .alike import not_ranked, unlike
from .contenders import Contender, Group, Ranking, between, common_step, ranking, seedless
from .sections import metrics_of

__all__ = ["compare"]

_MANY: Final = 10.0
"""From this ratio on, a difference is not given in per cent."""
_FEW: Final = 3
"""With fewer seeds a difference may always be chance."""
_LISTED: Final = 6
"""Metrics that are listed; the charts have all of them."""
_LONG: Final = 8
"""Characters of a number that is written as in the config."""


def compare(found: Sequence[Contender]) -> Verdict:
    """Which run ended lowest, if runs can be ranked, and in what they differ.

    What a term did is not said here: a difference is stated, and an ablation tests it.
    """
    order = ranking(found)
    stated = list(unlike(found))
    findings = [*_outcome(order), *_lengths(found, order), *_lost(order)]
    if not order.groups:
        return Verdict(("No run has a loss to compare.",), [*findings, *stated])
    why = not_ranked(order)
    if why:
        values = [(RunName(one.name), f" {shown(end)}") for group in order.groups for one, end in group.each]
        text = (f"The {order.what}{_at(order)}: ", *listed(values[:_LISTED]), ". It ranks nothing: ", *why, ".")
        findings = [Finding("ranking", text), *_lengths(found, order), *_lost(order)]
        headline: Sentence = ("The runs are not ranked: ", *why)
    else:
        headline = _first(order)
    if order.lost:
        headline = (*headline, ". ", *clauses(_diverged(order.lost)))
    learned = [] if why else list(_without(order)) or list(_swept(found, order))
    return Verdict((*headline, "."), [*findings, *learned, *_metrics(found), *stated])


def _at(order: Ranking) -> str:
    return "" if order.at is None else f" at step {steps_shown(order.at)}"


def _last(order: Ranking) -> str:
    return "the last evaluation that all have" if order.held_out else "the last that all have"


def _leaders(groups: Sequence[Group]) -> list[Group]:
    """The groups that ended about as low as the lowest, within the spread of their seeds."""
    found = [between(groups[0], group) for group in groups]
    return [group for group, apart in zip(groups, found, strict=True) if apart.small or apart.mixed]


def _first(order: Ranking) -> Sentence:
    """The headline's first sentence, without its full stop."""
    groups, what = order.groups, order.what
    leaders = _leaders(groups)
    at = _at(order)
    if len(groups) > 1 and len(leaders) == len(groups):
        members = sum(len(group.members) for group in groups)
        who = "Both runs" if members == 2 else "All runs"
        who = f"{who} that stayed finite" if order.lost else who
        values = [end for group in groups for end in group.ends]
        were = "were" if order.at is not None else "are" if order.lost else "ended"
        return (f"{who} {were} about equal{at}, with a {what} of {shown(sum(values) / len(values))}",)
    if len(groups) == 1:
        return (*groups[0].title, f" {_ends(groups[0], order)} a {what} of {shown(groups[0].end)}{at}")
    names = some([RunName(member.name) for group in leaders for member in group.members])
    if order.at is not None:
        were = "was" if len(names) == 1 else "were"
        return (*names, f" {were} lowest{at}, {_last(order)}, with a {what} of {shown(leaders[0].end)}")
    about = "about " if len(leaders) > 1 else ""
    return (*names, f" ended lowest, with a {what} of {about}{shown(leaders[0].end)}")


def _outcome(order: Ranking) -> Iterator[Finding]:
    """The lowest group, the next and the highest."""
    if not order.groups:
        return
    best, *others = order.groups
    if not others:
        yield Finding("ranking", (*best.title, f" {_ends(best, order)} a {order.what} of {best.shown}."))
        return
    if all(group.shown == best.shown for group in others):
        had = "had" if order.at is not None else "ended with"
        yield Finding("ranking", (f"Every run {had} the same {order.what}, to four digits: {best.shown}.",))
        return
    yield Finding("ranking", (*best.title, f" {_ends(best, order)} the lowest {order.what}: {best.shown}."))
    second, last = others[0], others[-1]
    follow = "follows" if len(second.members) == 1 else "follow"
    yield Finding("ranking", (*second.title, f" {follow}, with {second.shown}{_more(second, best)}."))
    apart = between(best, second)
    if apart.mixed:
        yield Finding("ranking", ("Which of these two is lower depends on the seed: the difference may be chance.",))
    elif apart.seeds < _FEW and not apart.small:
        seeds = "one seed" if apart.seeds == 1 else f"{apart.seeds} seeds"
        yield Finding("ranking", (f"With {seeds} the difference may be chance.",))
    if len(others) > 1:
        yield Finding("ranking", (*last.title, f" {_ends(last, order)} the highest: {last.shown}{_more(last, best)}."))


def _ends(group: Group, order: Ranking) -> str:
    average = "" if len(group.members) == 1 else ", on average,"
    return f"had{average}" if order.at is not None else f"ended{average} with"


def _more(group: Group, best: Group) -> str:
    more = group.end - best.end
    if more <= 5e-4 * abs(best.end):
        return ""
    if more > _MANY * best.end > 0:
        return f" ({shown(group.end / best.end, 2)} times as much)"
    return f" ({percent(more / best.end) if best.end > 0 else shown(more)} more)"


def _lengths(found: Sequence[Contender], order: Ranking) -> Iterator[Finding]:
    """Runs that are shorter than their config says, unless they ended early, or than others."""
    longest = max((one.last or 0 for one in found), default=0)
    short: dict[str, list[str]] = {}
    for one in found:
        done = one.last or 0
        if one.unfinished is not None:
            words = f"{steps_shown(done)} of {steps_shown(one.unfinished)} steps"
            short.setdefault(words, []).append(RunName(one.name))
        elif done < longest:
            words = f"{counted(done, 'step', steps_shown)}, the longest run {steps_shown(longest)}"
            short.setdefault(words, []).append(RunName(one.name))
    parts = [(*some(names), f" {'has' if len(names) == 1 else 'have'} {words}") for words, names in short.items()]
    if parts:
        at = "" if order.at is None else f". Runs are compared{_at(order)}, {_last(order)}"
        yield Finding("lengths", (*clauses(parts), f"{at}."))


def _diverged(lost: Sequence[Contender]) -> list[Sentence]:
    """For one or two runs, from which step; for more, only their names."""
    if len(lost) > 2:
        return [(*some([RunName(one.name) for one in lost]), " diverged")]
    return [(RunName(one.name), f" diverged{_since(one)}") for one in lost]


def _since(one: Contender) -> str:
    if one.summary.lost_from is None:
        return ": its loss is not finite"
    value = one.run.total.at(one.summary.lost_from)
    return f": {shown(value or 0.0)} from step {steps_shown(one.summary.lost_from)}"


def _lost(order: Ranking) -> Iterator[Finding]:
    """Runs that diverged, which rank last, and runs that cannot be compared."""
    for one in order.lost:
        yield Finding("broken", (RunName(one.name), f" diverged{_since(one)}. It ranks last."))
    for one in order.apart:
        why = "no step yet" if one.last is None else "no step in common with the others"
        yield Finding("lengths", (RunName(one.name), f" cannot be compared: {why}."))


def _without(order: Ranking) -> Iterator[Finding]:
    """What removing one term changed, for runs that differ in nothing else."""
    full = max(order.groups, key=lambda group: len(group.members[0].run.terms))
    whole = full.members[0].run
    for group in order.groups:
        other = group.members[0].run
        gone = [name for name in whole.terms if name not in other.terms]
        if len(gone) != 1 or whole.config is None or other.config is None:
            continue
        name = gone[0]
        if seedless(whole.config, name) != seedless(other.config, name):
            continue
        apart = between(full, group)
        seeds = "one seed" if apart.seeds == 1 else f"{apart.seeds} seeds"
        side = "higher" if apart.mean > 0 else "lower"
        part = f", {percent(apart.mean / full.end)} {side}" if 0 < group.end < _MANY * full.end else ""
        low, high = shown(min(apart.parts), 2), shown(max(apart.parts), 2)
        by = f"; from seed to seed the difference is {low} to {high}" if apart.seeds > 1 else ""
        text = f" the {order.what} ended at {shown(group.end)} instead of {shown(full.end)}{part} ({seeds}){by}."
        yield Finding("compared", ("Without ", Name(name), text))


def _metrics(found: Sequence[Contender]) -> Iterator[Finding]:
    """Metrics on held-out data and over samples at the last step that all have: the highest value first."""
    ended = [one for one in found if one.last is not None]
    last = min((one.last for one in ended if one.last is not None), default=0)
    steps = {name: common_step(series, last) for name, series in metrics_of(ended).items()}
    for name, step in [(name, step) for name, step in steps.items() if step is not None][:_LISTED]:
        series = metrics_of(ended)[name]
        values = [(part.at(step) or 0.0, one.name) for one, part in zip(ended, series, strict=True)]
        values.sort(key=lambda one: -one[0])
        every = "" if len(values) <= _LISTED else f", the highest and the lowest of {len(values)}"
        values = values if not every else [values[0], values[-1]]
        parts = [(RunName(run), f" {shown(value)}") for value, run in values]
        yield Finding("metrics", (f"{name} at step {steps_shown(step)}: ", *listed(parts), f"{every}."))


def _swept(found: Sequence[Contender], order: Ranking) -> Iterator[Finding]:
    """The best value of the one setting in which all groups differ."""
    if len(order.groups) < 2 or any(one.run.config is None for one in found):
        return
    changed = differences([seedless(group.members[0].run.config or {}) for group in order.groups])
    if len(changed) == 1:
        key, values = next(iter(changed.items()))
        pairs = zip(values, order.groups, strict=True)
        listing = ", ".join(f"{_brief(value)}: {shown(group.end)}" for value, group in pairs)
        text = f"The runs differ in {key} alone. {order.what.capitalize()} by its value, lowest first: {listing}."
        yield Finding("compared", (text,))


def _brief(value: str) -> str:
    """A value of a config, a long number in four digits."""
    try:
        return shown(float(value)) if len(value) > _LONG else value
    except ValueError:
        return value
