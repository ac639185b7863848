"""The verdict on a run: how it went, and what its terms did."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from ...pipeline.output import BASE
from .findings import Finding, Verdict
from .runlog import RunLog
from .scales import percent, shown, steps_shown
from .sentences import Name, Sentence, clauses, listed
from .summary import Ends, Summary
from .verdict_terms import agreed, drove, failed, fought, idle, slow

__all__ = ["judge", "moved"]

_COURSE: Final = ("outcome", "broken", "exploded")
"""What the first sentence is about; the second is about terms."""
_EXPLOSION: Final = 100.0
"""A gradient so many times as long as usual has exploded."""
_STEADY: Final = 0.01
"""A change by less is none."""
_RISEN: Final = 0.05
"""A held-out loss that has risen again by more than this part of its fall, or of its size, is told."""


def judge(run: RunLog, summary: Summary) -> Verdict:
    """What a run shows, most important first."""
    rules: Sequence[Callable[[RunLog, Summary], Iterator[Finding]]] = (
        _outcome,
        _broken,
        _exploded,
        drove,
        fought,
        idle,
        agreed,
        failed,
        slow,
        _held_out,
        _told,
    )
    findings = [finding for rule in rules for finding in rule(run, summary)]
    course = [finding.headline for finding in findings if finding.headline and finding.kind in _COURSE]
    terms = [finding.headline for finding in findings if finding.headline and finding.kind not in _COURSE]
    return Verdict((*listed(course), *([". ", *clauses(terms)] if terms else []), "."), findings)


def _outcome(run: RunLog, summary: Summary) -> Iterator[Finding]:
    loss, base = summary.loss, summary.base
    if not len(run.steps):
        yield Finding("outcome", ("The log has no step yet.",), ("No step yet",))
    elif loss is None:
        yield Finding("outcome", ("The loss was never finite.",), ("The loss was never finite",))
    elif len(run.steps) == 1:
        yield Finding("outcome", (f"One step, at which the loss is {shown(loss.first)}.",), ("One step",))
    else:
        parts = [f"The loss {moved(loss)} in {_steps(len(run.steps))}"]
        if base is not None and len(run.terms) > 1 and BASE in run.terms:
            parts.append(f"the base loss {moved(base)}")
        means = f" (means of the first and the last {steps_shown(loss.window)} steps)" if loss.window > 1 else ""
        yield Finding("outcome", ("; ".join(parts) + means + ".",), (f"The loss {_verb(loss)}",))


def _verb(change: Ends) -> str:
    relative = change.change
    if relative is None:
        return f"went from 0 to {shown(change.last)}"
    if abs(relative) < _STEADY:
        return f"stayed at about {shown(change.last)}"
    if relative > 1 and change.first > 0:
        return f"grew {shown(change.last / change.first, 2)}-fold"
    return f"{'fell' if relative < 0 else 'rose'} by {percent(relative)}"


def moved(change: Ends) -> str:
    """How a number changed, with its ends.

    >>> print(moved(Ends(0.0, 2.0, window=1)), moved(Ends(2.0, 2.001, window=1)), sep=", ")
    went from 0 to 2, stayed at about 2.001
    """
    verb = _verb(change)
    if verb.startswith(("went", "stayed")):
        return verb
    return f"{verb} from {shown(change.first)} to {shown(change.last)}"


def _broken(run: RunLog, summary: Summary) -> Iterator[Finding]:
    broken, norms = summary.broken, run.grad_norm
    bad = norms.steps[~np.isfinite(norms.values)]
    if len(broken):
        first = int(broken[0])
        found = {name: term.value.at(first) for name, term in run.terms.items()}
        names = [Name(name) for name, value in found.items() if value is not None and not math.isfinite(value)]
        source: Sentence = ("; not finite there: ", *listed(names)) if names else ()
        to_the_end = len(broken) > 1 and len(broken) == int((run.total.steps >= first).sum())
        where = f"from step {steps_shown(first)} to the end" if to_the_end else f"first at step {steps_shown(first)}"
        counted = f"{steps_shown(len(broken))} of {steps_shown(len(run.steps))} steps"
        text = (f"The loss was NaN or infinite in {counted}, {where}", *source, ".")
        headline = f"was NaN or infinite {where if to_the_end else f'in {counted}'}"
        yield Finding("broken", text, () if summary.loss is None else (headline,))
    elif len(bad):
        counted = f"{steps_shown(len(bad))} of {steps_shown(len(norms))} steps"
        where = f"first at step {steps_shown(bad[0])}"
        text = (f"The gradient was NaN or infinite in {counted}, {where}, though the loss was finite.",)
        yield Finding("broken", text, (f"its gradient was NaN or infinite in {counted}",))


def _exploded(run: RunLog, summary: Summary) -> Iterator[Finding]:
    if summary.peak is None or not summary.usual or summary.peak[1] < _EXPLOSION * summary.usual:
        return
    step, size = summary.peak
    pulls = {name: pull for name, term in run.terms.items() if (pull := term.pull.at(step)) is not None}
    worst = max(pulls, key=lambda name: pulls[name]) if pulls else None
    source: Sentence = () if worst is None else ("; most of it came from ", Name(worst))
    told = f"{shown(size, 3)} at step {steps_shown(step)}, {shown(size / summary.usual, 2)} times the usual"
    text = (f"The gradient exploded: its norm was {told} {shown(summary.usual, 3)} of the first quarter", *source, ".")
    yield Finding("exploded", text, (f"its gradient exploded at step {steps_shown(step)}",))


def _held_out(run: RunLog, summary: Summary) -> Iterator[Finding]:
    series = run.evaluations.loss.finite
    if not len(series):
        return
    what = "base loss" if BASE in run.evaluations.contributions else "loss"
    lowest = int(np.argmin(series.values))
    best, best_at = float(series.values[lowest]), int(series.steps[lowest])
    last, last_at = float(series.values[-1]), int(series.steps[-1])
    if len(series) == 1:
        text = f"On held-out data the {what} is {shown(last)} at step {steps_shown(last_at)}, the only evaluation."
        yield Finding("held out", (text,))
        return
    scale = max(float(series.values[0]) - best, abs(best))
    if last - best > _RISEN * scale:
        text = (
            f"On held-out data the {what} was lowest at step {steps_shown(best_at)}, {shown(best)}, and has risen "
            f"to {shown(last)} at step {steps_shown(last_at)}: an earlier checkpoint is the better one."
        )
        yield Finding("held out", (text,), (f"the held-out loss rises after step {steps_shown(best_at)}",))
        return
    change = Ends(float(series.values[0]), last, 1)
    lowest_words = "its lowest" if best_at == last_at else f"lowest at step {steps_shown(best_at)}, {shown(best)}"
    yield Finding("held out", (f"On held-out data the {what} {moved(change)}, {lowest_words}.",))


def _told(run: RunLog, summary: Summary) -> Iterator[Finding]:
    kinds = [event.kind for event in run.events]
    resumed = [steps_shown(event.step) for event in run.events if event.kind == "resumed"]
    if resumed:
        yield Finding("run", ("It was resumed at step ", *listed(resumed), "."))
    done = int(run.steps[-1]) + 1 if len(run.steps) else 0
    train: Any = (run.config or {}).get("train", {})
    wanted: Any = train.get("steps")
    if done and "finished" not in kinds and not (isinstance(wanted, int) and done >= wanted):
        after = f"{steps_shown(done)} of {steps_shown(wanted)} steps" if isinstance(wanted, int) else _steps(done)
        if kinds and kinds[-1] == "interrupted":
            text = f"It was interrupted after {after}; `penalties train --resume` goes on."
        else:
            torn = " while it wrote a line" if run.torn else ""
            text = f"The log ends after {after}: the run goes on, or was stopped{torn}."
        yield Finding("run", (text,))
    if run.unreadable:
        first, count = [str(line) for line in run.unreadable[:5]], len(run.unreadable)
        numbers = listed([*first, f"{count - 5} more"] if count > 5 else first)
        word = "line" if count == 1 else "lines"
        yield Finding("run", (f"{steps_shown(count)} {word} of the log could not be read: ", *numbers, "."))


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{steps_shown(count)} steps"
