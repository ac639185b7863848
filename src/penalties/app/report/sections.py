"""The charts and tables of one run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...pipeline.output import BASE
from ..problems import counted
from .charts.figure import Figure
from .charts.lines import lines
from .charts.marks import Moment
from .charts.palette import term_class
from .charts.scales import percent, seconds, shown, steps_shown
from .charts.sheet import Frame, Line
from .charts.spark import spark
from .charts.stacks import folded, stack
from .failures import kinds
from .runlog import RunLog, Series, inputs_in_words
from .summary import Ends, Summary, shares

__all__ = ["arrow", "colors", "cosines", "count_series", "events", "failures", "figures", "samples", "term_note"]
__all__ += ["term_rows", "time_rows"]

_NONE: Final = "–"
_MINUS: Final = re.compile(r"(?<![\w.])-(?=\d)|(?<=\de)-(?=\d)")
"""The sign of negative numbers and exponents, but not hyphens in names and dates."""
_SAMPLED: Final = 4
"""Of how many evaluations samples are shown."""
_EVENTS: Final = 40
"""How many events are listed; a run with many warnings has more."""
_REASONS: Final = 20
"""How many kinds of failures are listed for each term."""


def colors(names: Sequence[str]) -> dict[str, str]:
    """The CSS class of each term: the same in every chart and every run on a page."""
    others = [name for name in names if name != BASE]
    return {name: term_class(others.index(name) if name != BASE else 0, base=name == BASE) for name in names}


def count_series(run: RunLog) -> int:
    """How many lines the charts of a run have, which limits the points of each."""
    return 6 * len(run.terms) + 6 + 2 * len(run.own_metrics())


def figures(run: RunLog, css: Mapping[str, str], points: int) -> dict[str, list[Figure]]:
    """The charts of a run by section, all over the same steps; a section without data has none."""
    frame = Frame.around([run.steps, run.evaluations.total.steps], points)
    return {
        "loss": _loss(run, css, frame),
        "gradient": _gradient(run, css, frame),
        "weights": _weights(run, css, frame),
        "held_out": [*_held_out(run, css, frame), *_task(run, frame)],
        "metrics": _metrics(run, css, frame),
        "time": _time(run, css, frame),
    }


def _loss(run: RunLog, css: Mapping[str, str], frame: Frame) -> list[Figure]:
    if not len(run.total):
        return []
    drawn = [
        Line(name, css[name], term.contribution, [failure.step for failure in term.failures])
        for name, term in run.terms.items()
    ]
    marked = [Moment(event.step, event.kind) for event in run.events if event.kind in ("resumed", "interrupted")]
    total = Line("total", "total", run.total)
    note = "weight × value of every term, stacked; the line is their sum"
    return [stack("Loss", folded(drawn), total=total, frame=frame, marked=marked, note=note, size="full")]


def _gradient(run: RunLog, css: Mapping[str, str], frame: Frame) -> list[Figure]:
    apart = run.measured_elsewhere()
    pulls = {name: term.pull for name, term in run.terms.items() if len(term.pull) and name not in apart}
    if not pulls and not len(run.grad_norm):
        return []
    # The total first, so that a term of almost the same size is drawn over it.
    drawn = [Line("total", "total under", run.grad_norm)] if len(run.grad_norm) else []
    drawn += [Line(name, css[name], series) for name, series in pulls.items()]
    note = f"norm of each weighted gradient, and of their sum{_rarely(run, [line.series for line in drawn])}"
    found = [lines("Gradient norms", drawn, log=True, frame=frame, note=note)]
    if len(pulls) > 1:
        parts = shares(pulls, run.steps)
        # Only steps with a measurement: a share that is NaN there comes from a gradient that is NaN.
        measured = np.isin(run.steps, np.concatenate([series.steps for series in pulls.values()]))
        drawn = [Line(name, css[name], Series(run.steps[measured], part[measured])) for name, part in parts.items()]
        note = "of the sum of the weighted norms"
        found.append(stack("Shares of the gradient", folded(drawn), shares=True, frame=frame, note=note))
    if apart:
        drawn = [
            Line(f"{name} at the {inputs_in_words(inputs)}", css[name], run.terms[name].pull)
            for name, inputs in apart.items()
        ]
        note = "not comparable with those of the other terms"
        found.append(lines("Gradient norms at other inputs", drawn, log=True, frame=frame, note=note))
    return found


def _rarely(run: RunLog, measured: Sequence[Series]) -> str:
    """In how many steps gradients were measured, if not in all."""
    count = len(np.unique(np.concatenate([series.steps for series in measured])))
    every = len(run.steps)
    return "" if count == every else f"; measured in {steps_shown(count)} of {steps_shown(every)} steps"


def _weights(run: RunLog, css: Mapping[str, str], frame: Frame) -> list[Figure]:
    drawn = [
        Line(name, css[name], term.weight) for name, term in run.terms.items() if name != BASE and len(term.weight)
    ]
    found: list[Figure] = []
    if drawn:
        weights = np.concatenate([line.series.finite.values for line in drawn])
        positive, below = weights[weights > 0], bool(np.any(weights < 0))
        # On a linear axis, a weight of 0.001 beside one of 1 would look like 0.
        log = bool(len(positive)) and float(positive.max()) > 50 * float(positive.min()) and not below
        found.append(lines("Weights", drawn, log=log, zero=not log, frame=frame, note="as schedules set them"))
    if len(run.learning_rate):
        rate = [Line("learning rate", "plain", run.learning_rate)]
        found.append(lines("Learning rate", rate, zero=True, frame=frame))
    return found


def _held_out(run: RunLog, css: Mapping[str, str], frame: Frame) -> list[Figure]:
    evaluations = run.evaluations
    if not len(evaluations.total):
        return []
    parts = evaluations.contributions
    names = [name for name in parts if name != BASE]
    found: list[Figure] = []
    drawn = [Line("total", "total", evaluations.total)]
    if BASE in parts:
        drawn.insert(0, Line(BASE, css[BASE], parts[BASE]))
    found.append(lines("Held-out loss", drawn, frame=frame, note="on data that is not trained on"))
    if names:
        drawn = [Line(name, css[name], parts[name]) for name in names]
        found.append(lines("Held-out terms", drawn, zero=True, frame=frame, note="weight × value of every term"))
    return found


def _task(run: RunLog, frame: Frame) -> list[Figure]:
    # A chart for each: their scales have nothing in common.
    return [
        lines(name, [Line(name, "plain", series)], frame=frame, note="over samples for held-out prompts")
        for name, series in run.task.items()
        if len(series)
    ]


def _metrics(run: RunLog, css: Mapping[str, str], frame: Frame) -> list[Figure]:
    """The own metrics of the base loss and of terms: a chart for each, as their scales have nothing in common."""
    found: list[Figure] = []
    for (name, metric), (trained, held_out) in run.own_metrics().items():
        drawn = [Line("training", css.get(name, "plain"), trained), Line("held out", "total", held_out)]
        there = [line for line in drawn if len(line.series)]
        if there:
            note = "in training and on held-out data" if len(there) > 1 else f"in {there[0].name}"
            found.append(lines(f"{name}/{metric}", there, frame=frame, note=note))
    return found


def samples(run: RunLog) -> list[tuple[str, str, str]]:
    """What the model said: after which step, to which prompt, and the text; at the first and the last evaluations."""
    steps = sorted(step for step, said in run.spoken.items() if said)
    some = steps if len(steps) <= _SAMPLED else [steps[0], *steps[1 - _SAMPLED :]]
    prompts = dict.fromkeys(prompt for step in some for prompt, _ in run.spoken[step])
    return [
        (_after(step), prompt, text)
        for prompt in prompts
        for step in some
        for asked, text in run.spoken[step]
        if asked == prompt
    ]


def _time(run: RunLog, css: Mapping[str, str], frame: Frame) -> list[Figure]:
    drawn = [Line(name, css[name], term.duration) for name, term in run.terms.items() if len(term.duration)]
    if len(run.seconds):
        drawn.append(Line("step", "total", run.seconds))
    if not drawn:
        return []
    return [lines("Time", drawn, log=True, unit="seconds", frame=frame, note="of a step, and of each term in it")]


class Part(str):
    """A share in a table, with a bar under it."""

    __slots__ = ("share",)
    share: float

    @classmethod
    def of(cls, share: float) -> "Part":
        """The share in per cent; the bar is full at 100 %."""
        part = cls(percent(share))
        part.share = min(1.0, share)
        return part


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: a term and its cells."""

    name: str
    css: str
    cells: Sequence[str]


def term_rows(summary: Summary, css: Mapping[str, str]) -> list[Row]:
    """The row of each term: its shares, its value and weight at both ends, and its steps.

    A gradient measured at other inputs than most has its norm instead of a share.
    """
    rows: list[Row] = []
    for name, term in summary.terms.items():
        value = _NONE if term.value is None else arrow(term.value)
        weight = _NONE if term.weight is None or name == BASE else arrow(term.weight)
        loss = _NONE if term.loss_share is None else Part.of(term.loss_share)
        gradient = _NONE if term.grad_share is None else Part.of(term.grad_share)
        if term.inputs and term.pull is not None:
            gradient = f"norm {shown(term.pull, 3)} at the {inputs_in_words(term.inputs)}"
        ran = steps_shown(term.ran) + (f", {steps_shown(term.failed)} failed" if term.failed else "")
        rows.append(Row(name, css[name], [gradient, loss, value, weight, ran]))
    return rows


def term_note(summary: Summary) -> str:
    """What the numbers in the table of terms mean."""
    both = "the first and the last step"
    window = 1 if summary.loss is None else summary.loss.window
    ends = f"Values and weights are those of {both}."
    if window > 1:
        ends = f"Values are means of the first and the last {steps_shown(window)} steps; weights are those of {both}."
    return f"Share: |term| / Σ|terms|, averaged over steps. {ends}"


def arrow(both: Ends) -> str:
    """Both ends, or one number if they look the same."""
    first, last = shown(both.first, 3), shown(both.last, 3)
    return first if first == last else f"{first} → {last}"


def time_rows(run: RunLog, summary: Summary, css: Mapping[str, str]) -> list[Row]:
    """Terms by the time they took, slowest first."""
    steps = run.seconds.finite.values
    whole = float(steps.mean()) if len(steps) else 0.0
    rows: list[Row] = []
    timed = [(term.seconds, term.slowest, name) for name, term in summary.terms.items() if term.seconds is not None]
    for mean, slowest, name in sorted(timed, key=lambda entry: -entry[0]):
        part = Part.of(mean / whole) if whole else _NONE
        rows.append(Row(name, css[name], [seconds(mean), seconds(slowest or mean), part]))
    return rows


def failures(run: RunLog, css: Mapping[str, str]) -> list[Row]:
    """Failures by term and kind: how often, and the first and last step."""
    rows: list[Row] = []
    for name, term in run.terms.items():
        found = kinds(term.failures)
        for kind in found[:_REASONS]:
            first, last = steps_shown(kind.first), steps_shown(kind.last)
            where = first if kind.count == 1 else f"{first} to {last}"
            reason = kind.reason.strip() + (" (the numbers vary)" if kind.varied else "")
            rows.append(Row(name, css[name], [steps_shown(kind.count), where, reason]))
        if more := found[_REASONS:]:
            rest = f"for {counted(len(more), 'other reason', steps_shown)}, in metrics.jsonl"
            rows.append(Row(name, css[name], [steps_shown(sum(kind.count for kind in more)), "", rest]))
    return rows


def _after(step: int) -> str:
    """After which step something happened; nothing before the first one."""
    return steps_shown(step) if step else _NONE


def events(run: RunLog) -> list[tuple[str, str, str]]:
    """What happened to the run: after which step, kind and message; checkpoints are summed up in one line."""
    saved = [event for event in run.events if event.kind == "checkpoint"]
    others = [event for event in run.events if event.kind != "checkpoint"]
    rows = [(_after(event.step), event.kind, _MINUS.sub("−", event.message)) for event in others]
    if len(rows) > _EVENTS:
        rows = [*rows[:_EVENTS], ("", "", f"and {steps_shown(len(rows) - _EVENTS)} more in metrics.jsonl")]
    if saved:
        word = "checkpoint" if len(saved) == 1 else "checkpoints"
        rows.append((steps_shown(saved[-1].step), "saved", f"{steps_shown(len(saved))} {word}, the last at this step"))
    return rows


@dataclass(frozen=True, slots=True)
class Cell:
    """The cosine of a pair: its mean as text and as a number, a small line chart, and details."""

    text: str
    mean: float
    svg: str
    title: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """Cosines below the diagonal: rows are all terms but the first, columns all but the last."""

    names: Sequence[tuple[str, str]]
    """Terms and their CSS classes."""
    rows: Sequence[Sequence[Cell | None]]


def cosines(run: RunLog, summary: Summary, css: Mapping[str, str]) -> Matrix | None:
    """The matrix of mean cosines between all terms that have a gradient; None if none were measured."""
    measured = {name for pair, series in run.cosines.items() if len(series) for name in pair}
    if not measured:
        return None
    names = [name for name, term in run.terms.items() if name in measured or len(term.pull)]
    pairs = {(pair.first, pair.second): pair for pair in summary.pairs}
    rows: list[list[Cell | None]] = []
    for index, second in enumerate(names[1:], 1):
        row: list[Cell | None] = []
        for first in names[:index]:
            pair = pairs.get((first, second))
            if pair is None:
                row.append(None)
                continue
            lowest = f"lowest {shown(pair.lowest, 2)} at step {steps_shown(pair.lowest_at)}"
            title = (
                f"{first} and {second}: mean {shown(pair.mean, 2)}, {lowest}, {steps_shown(pair.count)} measurements"
            )
            row.append(
                Cell(
                    f"{pair.mean:z.2f}".replace("-", "−"),
                    pair.mean,
                    spark(run.cosines[first, second], -1.0, 1.0),
                    title,
                )
            )
        rows.append(row)
    return Matrix([(name, css[name]) for name in names], rows)
