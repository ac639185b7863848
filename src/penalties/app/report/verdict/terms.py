"""What is known of the terms of a run: shares of the gradient, conflicts, failures, times.

A share of the gradient is reported as one, and nothing more: what a term does to the result, only a run without it
shows.
"""

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
from .explained import explained, usual
from .findings import Finding
from .sentences import Name, Sentence, listed

__all__ = ["agreed", "conflicts", "failed", "shares", "slow", "small"]

_MOST: Final = 0.5
"""A term with more than this share has most of the gradient."""
_LISTED: Final = 0.01
"""Shares from this on are listed."""
_AGREEMENT: Final = 0.9
_OFTEN: Final = 0.25
"""A pair whose cosine is that low in this fraction of the measurements conflicts at times."""
_REASON: Final = 120
"""Characters of a reason in the verdict; the table of failures has all of it."""
_SHOWN: Final = 6
"""Shares that are listed."""
_SLOW: Final = 0.3
"""A term that takes this fraction of a step is slow."""
_PAIRS: Final = 3
"""Pairs that are listed; the matrix has all of them."""


def shares(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """The shares of the terms in the gradient, or in the loss if gradients were not measured."""
    ranked = _ranked(summary)
    if not ranked:
        return
    of = "of the gradient" if summary.tracked else "of the loss"
    caveat = "" if summary.tracked else f"; gradients were not measured{_unmeasured(run)}"
    if len(run.terms) == 1:
        name = Name(ranked[0][0])
        yield Finding("gradient", (name, " is the only term."), (name, " is the only term"))
        return
    first, top = ranked[0]
    if not top:
        text = "No term had a gradient" if summary.tracked else "Every term was 0 in every step"
        yield Finding("gradient", (f"{text}{caveat}.",), (f"{text[0].lower()}{text[1:]}",))
        return
    parts = [(Name(name), f" {percent(share)}") for name, share in ranked if share >= _LISTED]
    largest = "the largest are " if len(parts) > _SHOWN else ""
    text = (f"Shares {of}, on average: {largest}", *listed(parts[:_SHOWN]), f"{caveat}.")
    yield Finding("gradient", text, (Name(first), f" had {percent(top)} {of}") if top > _MOST else ())
    yield from _later(run, summary, of)
    yield from _apart(run, summary)


def _unmeasured(run: RunLog) -> str:
    """The setting that turned measurements off, if one did."""
    return "" if run.config is None or run.training("gradients_every") else " (train.gradients_every = 0)"


def _apart(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Terms whose gradients are measured at other inputs than most: their norms are not comparable."""
    others = {name: term for name, term in summary.terms.items() if term.inputs}
    most = next((log.inputs for name, log in run.terms.items() if log.inputs and name not in others), ())
    for name, term in others.items():
        norm = "" if term.pull is None else f" (median norm {shown(term.pull, 3)})"
        text = f" has no share: its gradient is taken at the {inputs_in_words(term.inputs)}{norm}"
        yield Finding("gradient", (Name(name), f"{text}, those of most terms at the {inputs_in_words(most)}."))


def _ranked(summary: Summary) -> list[tuple[str, float]]:
    found = [(name, term.share) for name, term in summary.terms.items() if term.share is not None]
    return sorted(found, key=lambda entry: -entry[1])


def _later(run: RunLog, summary: Summary, of: str) -> Iterator[Finding]:
    """If another term has most of the gradient at the end than at the start."""
    early = {name: term.early for name, term in summary.terms.items() if term.early is not None}
    late = {name: term.late for name, term in summary.terms.items() if term.late is not None}
    if len(run.steps) < 8 or not early or not late:
        return
    first, last = max(early, key=lambda name: early[name]), max(late, key=lambda name: late[name])
    if first != last and early[first] >= _MOST and late[last] >= _MOST:
        before = f" had most {of} in the first quarter, {percent(early[first])}; "
        yield Finding("gradient", (Name(first), before, Name(last), f" in the last, {percent(late[last])}."))


def conflicts(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Pairs of terms whose gradients point in opposite directions."""
    if len(run.terms) < 2 or not len(run.steps):
        return
    if not summary.pairs:
        why = "" if summary.tracked else _unmeasured(run)
        text = f"Whether gradients conflict is not known: no cosines between them were measured{why}."
        yield Finding("conflicts", (text,))
        return
    found = explained(run, summary)
    still = {name for finding in found.get("does nothing", ()) for name in finding.terms}
    always = [
        pair
        for finding in found.get("conflicts", ())
        for pair in summary.pairs
        if {pair.first, pair.second} == set(finding.terms) and not still & set(finding.terms)
    ]
    others = [pair for pair in summary.pairs if pair not in always and not still & {pair.first, pair.second}]
    at_times = [pair for pair in others if pair.below >= _OFTEN]
    more = {0: "", 1: ", and so did those of 1 other pair"}.get(
        len(always) - 1, f", and so did those of {len(always) - 1} other pairs"
    )
    for index, pair in enumerate(always[:_PAIRS]):
        often = f", below {shown(CONFLICT)} in {_often(pair)}" if pair.count > 1 else ""
        names = _both(pair)
        text = ("The gradients of ", *names, f" conflicted: their cosine was {shown(pair.mean, 2)} on average{often}.")
        yield Finding("conflicts", text, () if index else ("the gradients of ", *names, f" conflicted{more}"))
    for pair in at_times[: max(0, _PAIRS - len(always))]:
        lowest = f"lowest {shown(pair.lowest, 2)} at step {steps_shown(pair.lowest_at)}"
        below = f"their cosine was below {shown(CONFLICT)} in {_often(pair)}, {lowest}"
        yield Finding("conflicts", ("The gradients of ", *_both(pair), f" conflicted at times: {below}."))
    rest = len(always) + len(at_times) - _PAIRS
    if rest > 0:
        words = "pair of terms conflicted" if rest == 1 else "pairs of terms conflicted"
        yield Finding("conflicts", (f"The gradients of {rest} more {words}; see the matrix.",))
    if not always and not at_times:
        yield Finding("conflicts", _peace(run, summary, others))


def _peace(run: RunLog, summary: Summary, pairs: Sequence[Pair]) -> Sentence:
    """That no two gradients conflict, and how many pairs were measured."""
    if not pairs:
        return ("No two gradients conflicted: of each pair that was measured, one was 0.",)
    every, count = len(run.terms) * (len(run.terms) - 1) // 2, len(summary.pairs)
    of = f" ({count} of {every} pairs were measured)" if count < every else ""
    lowest = f"the lowest mean cosine is {shown(pairs[0].mean, 2)}, between those of "
    return (f"No two gradients conflicted{of}: {lowest}", *_both(pairs[0]), ".")


def _both(pair: Pair) -> Sentence:
    return (Name(pair.first), " and ", Name(pair.second))


def _often(pair: Pair) -> str:
    part = "all" if pair.below == 1 else f"{percent(pair.below)} of"
    return f"{part} {steps_shown(pair.count)} measurements"


def agreed(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Pairs of gradients that point the same way."""
    for pair in [pair for pair in reversed(summary.pairs) if pair.mean > _AGREEMENT][:_PAIRS]:
        enough = "" if BASE in (pair.first, pair.second) else "; a run without one of them shows whether it is needed"
        text = f" pointed the same way: their cosine was {shown(pair.mean, 2)} on average{enough}."
        yield Finding("agreed", ("The gradients of ", *_both(pair), text))


def small(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Terms without a gradient, and those whose gradient is small beside the largest."""
    if len(run.terms) < 2:
        return
    found = explained(run, summary)
    none = [name for kind in ("no gradient", "does nothing") for one in found.get(kind, ()) for name in one.terms]
    none += [name for name in summary.terms if name not in none and _never(run, summary, name)]
    headline = (*listed([Name(name) for name in none]), " had no gradient")
    for index, name in enumerate(none):
        yield Finding("small", (Name(name), f" had no gradient: {_why(run, name)}."), () if index else headline)
    little = [(name, one.terms[0]) for one in found.get("dominates", []) for name in one.terms[1:] if name not in none]
    what = "gradient" if summary.tracked else "part of the loss"
    headline = (*listed([Name(name) for name, _ in little]), f" had a small {what}")
    for index, (name, largest) in enumerate(little):
        text = (Name(name), f" had a small {what}: ", *_how_little(run, summary, name, largest))
        yield Finding("small", text, () if index else headline)


def _never(run: RunLog, summary: Summary, name: str) -> bool:
    """Whether a term whose gradient was not measured is 0 in every step."""
    term = run.terms[name]
    unmeasured = summary.tracked and not len(term.pull) and not summary.terms[name].inputs
    return unmeasured and bool(len(term.value)) and not np.any(term.value.values)


def _why(run: RunLog, name: str) -> str:
    term = run.terms[name]
    if not np.any(term.weight.values):
        return "its weight is 0 in every step"
    if term.grad_error is not None and not len(term.grad_norm):
        return term.grad_error
    if not np.any(term.value.values):
        return "its value is 0 in every step"
    where = "wherever it was measured" if len(term.grad_norm) < len(term.value) else "in every step"
    return f"its norm is 0 {where}"


def _how_little(run: RunLog, summary: Summary, name: str, top: str) -> Sentence:
    share = percent(summary.terms[name].share or 0.0)
    if not summary.tracked:
        return (f"{share} of it.",)
    longest, own = usual(run.terms[top]), usual(run.terms[name])
    if not longest or not own:
        return (f"{share} of the whole.",)
    return (f"{share} of the whole; that of ", Name(top), f" was {shown(longest / own, 2)} times as long.")


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
            text = (Name(name), f" failed in {often}, {first}: {_cut(term.failures[0].reason)}{others}.")
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
