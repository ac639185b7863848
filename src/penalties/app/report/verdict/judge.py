"""The verdict on a run: how it went, and what its terms did."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from ....pipeline.output import BASE
from ...problems import counted
from ..numbers import shown, steps_shown
from ..runlog import RunLog, Series
from ..summary import Ends, Summary
from .findings import Finding, Verdict
from .history import briefly, broken, exploded, lost, moved, outcome, spiked
from .sentences import Sentence, clauses, listed
from .terms import agreed, conflicts, failed, shares, slow, small

__all__ = ["judge"]

_HISTORY: Final = ("held out", "outcome", "broken", "spiked", "exploded", "run")
"""The findings in the first sentence of the headline; the second is about terms."""
_KEPT: Final = 2
"""How many checkpoints a run keeps whose config does not say so."""
_RISEN: Final = 0.05
"""A held-out loss is reported as rising if it rose by more than this fraction of its fall, or of its size."""


def judge(run: RunLog, summary: Summary) -> Verdict:
    """What a run shows: the held-out loss first, unless the loss was lost."""
    rules: Sequence[Callable[[RunLog, Summary], Iterator[Finding]]] = (
        lost,
        _held_out,
        outcome,
        broken,
        spiked,
        exploded,
        shares,
        small,
        conflicts,
        agreed,
        failed,
        slow,
        _told,
    )
    findings = [finding for rule in rules for finding in rule(run, summary)]
    history = [finding for finding in findings if finding.headline and finding.kind in _HISTORY]
    if any(finding.kind == "held out" for finding in history):
        # The loss in training is behind it.
        history = [finding for finding in history if finding.kind != "outcome"]
    terms = [finding.headline for finding in findings if finding.headline and finding.kind not in _HISTORY]
    told = clauses([finding.headline for finding in history])
    return Verdict((*told, *([". ", *clauses(terms)] if terms else []), "."), findings)


def _held_out(run: RunLog, summary: Summary) -> Iterator[Finding]:
    series = run.evaluations.loss.finite
    if not len(series):
        return
    what = "base loss" if BASE in run.evaluations.contributions else "loss"
    lowest = int(np.argmin(series.values))
    best, best_at = float(series.values[lowest]), int(series.steps[lowest])
    last, last_at = float(series.values[-1]), int(series.steps[-1])
    if len(series) == 1:
        headline = f"the held-out {what} is {shown(last)}"
        yield Finding(
            "held out", (f"The held-out {what} is {shown(last)} {_when(last_at)}, the only evaluation.",), (headline,)
        )
        return
    scale = max(float(series.values[0]) - best, abs(best))
    if last - best > _RISEN * scale:
        where = f"was lowest {_when(best_at)}, {shown(best)}, and has risen to {shown(last)}"
        text = f"The held-out {what} {where} {_when(last_at)}: {_better(run, series, best_at)}."
        yield Finding("held out", (text,), (f"the held-out {what} {where}",))
        return
    change = Ends(float(series.values[0]), last, 1)
    lowest_words = "its lowest" if best_at == last_at else f"lowest {_when(best_at)}, {shown(best)}"
    text = f"The held-out {what} {moved(change)}, {lowest_words}."
    yield Finding("held out", (text,), (f"the held-out {what} {briefly(change)}",))


def _when(step: int) -> str:
    """When an evaluation was made."""
    return f"at step {steps_shown(step)}" if step else "before training"


def _better(run: RunLog, series: Series, best_at: int) -> str:
    """What to do about a rising held-out loss: use a checkpoint that still exists, or train for fewer steps."""
    keep = run.training("keep")
    kept = keep if isinstance(keep, int) and keep > 0 else _KEPT
    made = {event.step: event.best for event in run.events if event.kind == "checkpoint"}
    last_made = sorted(made)[-kept:]
    saved = sorted({*last_made, *(best for step in last_made if (best := made[step]) in made)})
    losses = [float(np.interp(step, series.steps, series.values)) for step in saved]
    last = float(series.values[-1])
    if losses and last - min(losses) > _RISEN * abs(last):
        return f"the checkpoint of step {steps_shown(saved[int(np.argmin(losses))])} is better"
    return f"train for fewer steps, about {steps_shown(best_at)}" if best_at else "a lower learning rate may help"


def _told(run: RunLog, summary: Summary) -> Iterator[Finding]:
    kinds = [event.kind for event in run.events]
    resumed = [event.step for event in run.events if event.kind == "resumed"]
    later = [steps_shown(step) for step in resumed if step]
    words: list[Sentence] = [("before step 1",)] if 0 in resumed else []
    words += [("after step ", *listed(later))] if later else []
    if words:
        yield Finding("run", ("It was resumed ", *listed(words), "."))
    done = int(run.steps[-1]) if len(run.steps) else 0
    wanted = run.wanted
    # Of another loop nothing says how long it should be.
    if done and run.folder and "finished" not in kinds and not (wanted is not None and done >= wanted):
        after = (
            f"{steps_shown(done)} of {steps_shown(wanted)} steps"
            if wanted is not None
            else counted(done, "step", steps_shown)
        )
        headline: Sentence = ()
        if kinds and kinds[-1] == "interrupted":
            resume = f"penalties train --run {shlex.quote(run.folder)} --resume"
            text = f"It was interrupted after {after}; resume it with `{resume}`."
        elif kinds and kinds[-1] == "failed":
            why = run.events[-1].message.splitlines()
            text = f"It failed after {after}{f': {why[0]}' if why else '.'}"
            headline = (f"the run failed after {after}",)
        else:
            torn = " while writing a line" if run.torn else ""
            text = f"The log ends after {after}: the run is still going, or was stopped{torn}."
        yield Finding("run", (text,), headline)
    elif not done and kinds and kinds[-1] == "failed":
        when = "before its first step was finished"
        why = f"It failed {when}: {run.events[-1].message.splitlines()[0]}"
        yield Finding("run", (why,), (f"the run failed {when}",))
    if run.unreadable:
        first, count = [str(line) for line in run.unreadable[:5]], len(run.unreadable)
        numbers = listed([*first, f"{count - 5} more"] if count > 5 else first)
        word = "line" if count == 1 else "lines"
        yield Finding("run", (f"{steps_shown(count)} {word} of the log could not be read: ", *numbers, "."))
