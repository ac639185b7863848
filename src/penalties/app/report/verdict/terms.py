"""What the terms of a run did: which drove it, which fought, which did nothing, failed or were slow."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ....pipeline.explanation import CONFLICT
from ....pipeline.output import BASE
from ...problems import counted
from ..failures import kinds
from ..numbers import percent, seconds, shown, steps_shown
from ..runlog import RunLog, inputs_in_words
from ..summary import Pair, Summary, TermSummary
from .findings import Finding
from .sentences import Name, Sentence, listed

__all__ = ["agreed", "drove", "failed", "fought", "idle", "slow"]

_ALONE: Final = 0.6
"""A term with this share drives training alone."""
_TOGETHER: Final = 0.8
"""Two terms with this share drive it together."""
_IDLE: Final = 0.01
"""A term with a smaller share does next to nothing."""
_AGREEMENT: Final = 0.9
_OFTEN: Final = 0.25
"""A pair that conflicts in this fraction of the measurements fights at times."""
_STILL: Final = "its gradient is 0 in every step"
_REASON: Final = 120
"""Characters of a reason in the verdict; the table of failures has all of it."""
_SHOWN: Final = 6
"""Shares that are listed if no term drives training."""
_SLOW: Final = 0.3
"""A term that takes this fraction of a step is slow."""
_MOST: Final = 3
"""Pairs that are listed; the matrix has all of them."""


def drove(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """The terms that most of the gradient came from."""
    ranked = _ranked(summary)
    if not ranked:
        return
    of = "of the gradient" if summary.tracked else "of the loss"
    caveat = "" if summary.tracked else f"; gradients were not measured{_unmeasured(run)}"
    if len(run.terms) == 1:
        name = Name(ranked[0][0])
        yield Finding("drove", (name, " is the only term."), (name, " is the only term"))
        return
    (first, top), *others = ranked
    if not top:
        text = "No term had a gradient" if summary.tracked else "Every term was 0 in every step"
        yield Finding("drove", (f"{text}{caveat}.",), (f"{text[0].lower()}{text[1:]}",))
        return
    second, next_share = others[0] if others else ("", 0.0)
    if top >= _ALONE:
        rest: Sentence = (", ", Name(second), f" {percent(next_share)}") if next_share >= _IDLE else ()
        text = (Name(first), f" drove training: {percent(top)} {of} on average", *rest, f"{caveat}.")
        yield Finding("drove", text, (Name(first), " drove training"))
    elif top + next_share >= _TOGETHER:
        names = listed([Name(first), Name(second)])
        text = (*names, f" drove training together: {percent(top)} and {percent(next_share)} {of} on average{caveat}.")
        yield Finding("drove", text, (*names, " drove training"))
    else:
        parts = [(Name(name), f" {percent(share)}") for name, share in ranked if share >= _IDLE]
        largest = ", the largest" if len(parts) > _SHOWN else ""
        text = (f"No single term drove training{largest}: ", *listed(parts[:_SHOWN]), f" {of} on average{caveat}.")
        yield Finding("drove", text, ("no single term drove training",))
    yield from _took_over(run, summary, of)
    yield from _apart(run, summary)


def _unmeasured(run: RunLog) -> str:
    """The setting that turned measurements off, if one did."""
    return "" if run.training("gradients_every") else " (train.gradients_every = 0)"


def _apart(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Terms whose gradients are measured at other inputs than most: their norms are not comparable."""
    others = {name: term for name, term in summary.terms.items() if term.inputs}
    usual = next((log.inputs for name, log in run.terms.items() if log.inputs and name not in others), ())
    for name, term in others.items():
        norm = "" if term.pull is None else f" (median norm {shown(term.pull, 3)})"
        text = f" is not ranked: its gradient is taken at the {inputs_in_words(term.inputs)}{norm}"
        yield Finding("drove", (Name(name), f"{text}, those of most terms at the {inputs_in_words(usual)}."))


def _ranked(summary: Summary) -> list[tuple[str, float]]:
    found = [(name, term.share) for name, term in summary.terms.items() if term.share is not None]
    return sorted(found, key=lambda entry: -entry[1])


def _took_over(run: RunLog, summary: Summary, of: str) -> Iterator[Finding]:
    early = {name: term.early for name, term in summary.terms.items() if term.early is not None}
    late = {name: term.late for name, term in summary.terms.items() if term.late is not None}
    if len(run.steps) < 8 or not early or not late:
        return
    first, last = max(early, key=lambda name: early[name]), max(late, key=lambda name: late[name])
    if first != last and early[first] >= 0.5 and late[last] >= 0.5:
        led = f" led at first, with {percent(early[first])} {of} in the first quarter; "
        took = f" took over, with {percent(late[last])} in the last."
        yield Finding("drove", (Name(first), led, Name(last), took), (Name(last), " took over from ", Name(first)))


def fought(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Pairs of terms whose gradients point in opposite directions."""
    if len(run.terms) < 2 or not len(run.steps):
        return
    if not summary.pairs:
        why = "" if summary.tracked else _unmeasured(run)
        yield Finding(
            "fought", (f"Whether terms fought is not known: no cosines between gradients were measured{why}.",)
        )
        return
    resting = {name for name, term in summary.terms.items() if _rests(run, term)}
    pairs = [pair for pair in summary.pairs if pair.first not in resting and pair.second not in resting]
    always = [pair for pair in pairs if pair.mean < CONFLICT]
    at_times = [pair for pair in pairs if pair.mean >= CONFLICT and pair.below >= _OFTEN]
    others = {0: "", 1: ", and so did 1 other pair"}.get(len(always) - 1, f", and so did {len(always) - 1} other pairs")
    for index, pair in enumerate(always[:_MOST]):
        often = f", below {shown(CONFLICT)} in {_often(pair)}" if pair.count > 1 else ""
        names = _both(pair)
        text = (*names, f" fought: the cosine between their gradients was {shown(pair.mean, 2)} on average{often}.")
        yield Finding("fought", text, () if index else (*names, f" fought{others}"))
    for pair in at_times[: max(0, _MOST - len(always))]:
        lowest = f"lowest {shown(pair.lowest, 2)} at step {steps_shown(pair.lowest_at)}"
        below = f"the cosine was below {shown(CONFLICT)} in {_often(pair)}, {lowest}"
        yield Finding("fought", (*_both(pair), f" fought at times: {below}."))
    more = len(always) + len(at_times) - _MOST
    if more > 0:
        yield Finding("fought", (f"{more} more {'pair' if more == 1 else 'pairs'} of terms fought; see the matrix.",))
    if not always and not at_times:
        yield Finding("fought", _peace(run, summary, pairs))


def _peace(run: RunLog, summary: Summary, pairs: Sequence[Pair]) -> Sentence:
    """That no two terms fought, and how many pairs were measured."""
    if not pairs:
        return ("No two terms fought: of each pair that was measured, one did next to nothing.",)
    every, count = len(run.terms) * (len(run.terms) - 1) // 2, len(summary.pairs)
    of = f" ({count} of {every} pairs were measured)" if count < every else ""
    pair = pairs[0]
    return (f"No two terms fought{of}: the lowest mean cosine is {shown(pair.mean, 2)}, between ", *_both(pair), ".")


def _rests(run: RunLog, term: TermSummary) -> bool:
    """Whether a term did nothing, or next to nothing."""
    little = term.share is not None and term.share < _IDLE
    return bool(term.ran) and (_why_nothing(run, term) is not None or little)


def _both(pair: Pair) -> Sentence:
    return (Name(pair.first), " and ", Name(pair.second))


def _often(pair: Pair) -> str:
    part = "all" if pair.below == 1 else f"{percent(pair.below)} of"
    return f"{part} {steps_shown(pair.count)} measurements"


def agreed(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Pairs of terms that pull the same way: one of them may be enough, unless it is the base loss."""
    for pair in [pair for pair in reversed(summary.pairs) if pair.mean > _AGREEMENT][:_MOST]:
        enough = "" if BASE in (pair.first, pair.second) else "; one of them may be enough"
        text = f" pulled the same way: their cosine was {shown(pair.mean, 2)} on average{enough}."
        yield Finding("agreed", (*_both(pair), text))


def idle(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Terms that did nothing, or next to nothing."""
    if len(run.terms) < 2:
        return
    ranked = _ranked(summary)
    nothing: list[str] = []
    little: list[str] = []
    findings: list[Finding] = []
    for name, term in summary.terms.items():
        reason = _why_nothing(run, term)
        if reason is not None:
            nothing.append(name)
            findings.append(Finding("idle", (Name(name), f" did nothing: {reason}.")))
        elif _rests(run, term):
            little.append(name)
            findings.append(Finding("idle", (Name(name), *_how_little(summary, term, ranked[0][0]))))
    for names, words in ((nothing, " did nothing"), (little, " did next to nothing")):
        if names:
            first = next(index for index, finding in enumerate(findings) if finding.text[0] == names[0])
            headline = (*listed([Name(name) for name in names]), words)
            findings[first] = Finding("idle", findings[first].text, headline)
    yield from findings


def _why_nothing(run: RunLog, term: TermSummary) -> str | None:
    log = run.terms[term.name]
    if not term.ran:
        return None
    if not np.any(log.weight.values):
        return "its weight is 0 in every step"
    if log.grad_error is not None and not len(log.grad_norm):
        return f"it has no gradient ({log.grad_error})"
    still = not np.any(log.pull.values)
    if still and not np.any(log.value.values):
        return "its value is 0 in every step"
    if still and len(log.grad_norm):
        return "its gradient is 0 wherever it was measured" if len(log.grad_norm) < term.ran else _STILL
    return None


def _how_little(summary: Summary, term: TermSummary, top: str) -> Sentence:
    share = percent(term.share or 0.0)
    if not summary.tracked:
        return (f" did next to nothing: {share} of the loss.",)
    longest = summary.terms[top].pull
    if not longest or not term.pull:
        return (f" did next to nothing: {share} of the gradient.",)
    times = shown(longest / term.pull, 2)
    return (f" did next to nothing: {share} of the gradient; that of ", Name(top), f" was {times} times as long.")


def failed(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Terms that were left out of steps."""
    for name, term in run.terms.items():
        if term.failures:
            count, ran = len(term.failures), len(term.value)
            reasons = kinds(term.failures)
            often = f"{steps_shown(count)} of {steps_shown(ran + count)} steps"
            first = f"first at step {steps_shown(term.failures[0].step)}"
            more = len(reasons) - 1
            others = f" (and {counted(more, 'other reason', steps_shown)})" if more else ""
            text = (Name(name), f" failed in {often}, {first}: {_cut(reasons[0].reason)}{others}.")
            yield Finding("failed", text, (Name(name), f" failed in {often}"))


def _cut(reason: str) -> str:
    """A reason on one line, cut if it is long."""
    line = " ".join(reason.split()).rstrip(".")
    return line if len(line) <= _REASON else f"{line[: _REASON - 1].rstrip()}…"


def slow(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Terms that take a large part of a step's time."""
    times = run.seconds.finite.values
    whole = float(times.mean()) if len(times) else 0.0
    parts: Sequence[TermSummary] = [term for name, term in summary.terms.items() if name != BASE]
    for term in sorted(parts, key=lambda term: -(term.seconds or 0.0)):
        if whole and (term.seconds or 0.0) >= _SLOW * whole:
            took = f" took {seconds(term.seconds or 0.0)} on average, while a step took {seconds(whole)}."
            yield Finding("slow", (Name(term.name), took))
