"""How a run went: where its loss started and ended, and whether it diverged, spiked or exploded."""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ....pipeline.explanation import EXPLOSION_RATIO
from ....pipeline.output import BASE
from ...problems import counted
from ..numbers import percent, shown, steps_shown
from ..runlog import RunLog
from ..summary import Ends, Summary
from .findings import Finding
from .sentences import Name, Sentence, listed

__all__ = ["briefly", "broken", "exploded", "lost", "moved", "outcome", "spiked"]

_STEADY: Final = 0.01
"""A smaller relative change counts as none."""
_STEEP: Final = 0.1
"""The first loss is reported if it differs from the mean of the first steps by more than this fraction of it."""


def lost(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """A loss that became NaN or infinite for good; this comes before everything else."""
    if summary.lost_from is None or summary.loss is None:
        return
    step = summary.lost_from
    word = "NaN" if math.isnan(run.total.at(step) or 0.0) else "infinite"
    never = ", the last" if step == int(run.total.steps[-1]) else " and never came back"
    before = len(summary.broken) - int((run.total.steps >= step).sum())
    earlier = "1 earlier step was" if before == 1 else f"{steps_shown(before)} earlier steps were"
    again = f"; {earlier} NaN or infinite too" if before else ""
    text = f"The loss became {word} at step {steps_shown(step)}{never}"
    yield Finding("broken", (text, *_source(run, step), f"{again}."), (text,))


def outcome(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """Where the loss started and ended."""
    loss, base = summary.loss, summary.base
    if not len(run.steps):
        yield Finding("outcome", ("The log has no step yet.",), ("No step yet",))
    elif loss is None:
        yield Finding("outcome", ("The loss was never finite.",), ("The loss was never finite",))
    elif len(run.steps) == 1:
        yield Finding("outcome", (f"One step, at which the loss is {shown(loss.first)}.",), ("One step",))
    else:
        parts = [f"The loss {moved(loss)} {_span(run, summary)}"]
        if base is not None and len(run.terms) > 1 and BASE in run.terms:
            parts.append(f"the base loss {moved(base)}")
        subject = "The loss" if summary.lost_from is None else "it"
        until = "" if summary.lost_from is None else f" {_span(run, summary)}"
        text = "; ".join(parts) + _means(run, loss) + "."
        yield Finding("outcome", (text,), (f"{subject} {briefly(loss)}{until}",))


def _span(run: RunLog, summary: Summary) -> str:
    """The number of steps; if the loss stayed NaN or infinite, the last step at which it was finite."""
    if summary.lost_from is None:
        return f"in {counted(len(run.steps), 'step', steps_shown)}"
    return f"until step {steps_shown(run.total.finite.steps[-1])}"


def _means(run: RunLog, loss: Ends) -> str:
    """How the ends were averaged, unless each is a single step; and the first loss, if it is far from its mean."""
    if loss.window == 1:
        return ""
    first = float(run.total.finite.values[0])
    steep = abs(first - loss.first) > _STEEP * abs(loss.first)
    at_first = f"; at the first step it was {shown(first)}" if steep else ""
    return f" (means of the first and the last {steps_shown(loss.window)} steps{at_first})"


class _Move(NamedTuple):
    """How a number changed."""

    words: str
    whole: bool
    """Whether the words say where it ended, too."""


def _move(change: Ends) -> _Move:
    first, last = change.first, change.last
    if first == last == 0:
        return _Move("stayed at 0", whole=True)
    if first == 0:
        return _Move(f"went from 0 to {shown(last)}", whole=True)
    if abs(last - first) < _STEADY * abs(first):
        return _Move(f"stayed at about {shown(last)}", whole=True)
    if last > 2 * first > 0:
        return _Move(f"grew {shown(last / first, 2)}-fold", whole=False)
    # A percentage means nothing for negative numbers, or across zero.
    amount = percent((last - first) / first) if first > 0 and last >= 0 else shown(abs(last - first))
    return _Move(f"{'fell' if last < first else 'rose'} by {amount}", whole=False)


def moved(change: Ends) -> str:
    """How a number changed, from where to where.

    >>> print(moved(Ends(0.0, 2.0, window=1)), moved(Ends(2.0, 2.001, window=1)), sep=", ")
    went from 0 to 2, stayed at about 2.001
    >>> print(moved(Ends(1.0, -0.5, window=1)))
    fell by 1.5 from 1 to −0.5
    """
    words, whole = _move(change)
    return words if whole else f"{words} from {shown(change.first)} to {shown(change.last)}"


def briefly(change: Ends) -> str:
    r"""The same in a few words, with where it ended.

    >>> briefly(Ends(4.0, 2.0, window=1))
    'fell by 50\xa0% to 2'
    """
    words, whole = _move(change)
    return words if whole else f"{words} to {shown(change.last)}"


def _source(run: RunLog, step: int) -> Sentence:
    """The terms that are NaN or infinite at a step."""
    found = {name: term.value.at(step) for name, term in run.terms.items()}
    names = [Name(name) for name, value in found.items() if value is not None and not math.isfinite(value)]
    return ("; not finite there: ", *listed(names)) if names else ()


def broken(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """A loss or a gradient that was NaN or infinite, and recovered."""
    wrong, norms = summary.broken, run.grad_norm
    bad = norms.steps[~np.isfinite(norms.values)]
    if summary.lost_from is not None and summary.loss is not None:
        return
    if len(wrong):
        first = int(wrong[0])
        counted = f"{steps_shown(len(wrong))} of {steps_shown(len(run.steps))} steps"
        where = f"first at step {steps_shown(first)}"
        text = (f"The loss was NaN or infinite in {counted}, {where}", *_source(run, first), ".")
        yield Finding("broken", text, () if summary.loss is None else (f"the loss was NaN or infinite in {counted}",))
    elif len(bad):
        measured = "steps" if len(norms) == len(run.steps) else "measured steps"
        counted = f"{steps_shown(len(bad))} of {steps_shown(len(norms))} {measured}"
        where = f"first at step {steps_shown(bad[0])}"
        text = (f"The gradient was NaN or infinite in {counted}, {where}, though the loss was finite.",)
        yield Finding("broken", text, (f"the gradient was NaN or infinite in {counted}",))


def spiked(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """A step at which the loss was far above the steps around it."""
    spike = summary.spike
    if spike is not None:
        headline = f"spiked to {shown(spike.value)} at step {steps_shown(spike.step)}"
        text = f"The loss {headline}, against about {shown(spike.level)} around it; the means leave it out."
        yield Finding("spiked", (text,), (f"the loss {headline}",))


def exploded(run: RunLog, summary: Summary) -> Iterator[Finding]:
    """A gradient that was far larger than usual."""
    if summary.peak is None or not summary.usual or summary.peak[1] < EXPLOSION_RATIO * summary.usual:
        return
    step, size = summary.peak
    ranked = [term for name, term in run.terms.items() if not summary.terms[name].inputs]
    pulls = {term.name: pull for term in ranked if (pull := term.pull.at(step)) is not None}
    worst = max(pulls, key=lambda name: pulls[name]) if pulls else None
    source: Sentence = () if worst is None else ("; most of it came from ", Name(worst))
    measured = f"{shown(size, 3)} at step {steps_shown(step)}, {shown(size / summary.usual, 2)} times the usual"
    usual = f"{shown(summary.usual, 3)} of the first quarter"
    text = (f"The gradient exploded: its norm was {measured} {usual}", *source, ".")
    yield Finding("exploded", text, (f"the gradient exploded at step {steps_shown(step)}",))
