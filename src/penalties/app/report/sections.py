"""The charts of one run, section by section, and what needs none because it never changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...pipeline.output import BASE
from .charts.chart import Chart
from .charts.columns import Columns
from .charts.lines import Line, Moment, lines, shares
from .charts.palette import term_class
from .numbers import shown, steps_shown
from .runlog import RunLog, Series, TermLog, inputs_in_words
from .summary import Ends
from .tables import arrow

__all__ = ["Section", "colors", "sections"]

_FAR: Final = 50
"""Weights further apart than this have a log axis: on a linear one, 0.001 beside 1 would look like 0."""


@dataclass(slots=True)
class Section:
    """Charts, and lines of text for what is the same in every step."""

    charts: list[Chart] = field(default_factory=list[Chart])
    constants: list[str] = field(default_factory=list[str])

    def add(self, title: str, drawn: Sequence[Line], chart: Chart) -> None:
        """A chart, or a line of text if none of its series changes."""
        there = [line for line in drawn if len(line.series)]
        if not there:
            return
        if all(constant(line.series) for line in there):
            values = ", ".join(f"{line.name} {_first(line)}" for line in there)
            same = _first(there[0]) if len(there) == 1 else values
            self.constants.append(f"{title}: {same}{_always(there[0].series)}")
        else:
            self.charts.append(chart)


def constant(series: Series) -> bool:
    """Whether a series has the same finite number in every step, and more than one of them."""
    values = series.values
    return len(values) > 1 and bool(np.isfinite(values[0])) and bool((values == values[0]).all())


def _first(line: Line) -> str:
    return shown(line.times * float(line.series.values[0]))


def _always(series: Series) -> str:
    return f" at all {steps_shown(len(series))} steps"


def colors(names: Sequence[str]) -> dict[str, str]:
    """The CSS class of each term: the same in every chart and every run on a page."""
    others = [name for name in names if name != BASE]
    return {name: term_class(others.index(name) if name != BASE else 0, base=name == BASE) for name in names}


def sections(run: RunLog, css: Mapping[str, str], columns: Columns) -> dict[str, Section]:
    """The charts of a run by section; a section without data is empty."""
    return {
        "loss": _loss(run, columns),
        "terms": _terms(run, css, columns),
        "gradient": _gradient(run, css, columns),
        "metrics": _metrics(run, css, columns),
        "time": _time(run, css, columns),
    }


def _loss(run: RunLog, columns: Columns) -> Section:
    """The held-out base loss, with the training loss behind it."""
    found, held_out, based = Section(), run.evaluations.loss, BASE in run.terms
    name = "base loss" if based else "loss"
    drawn: list[Line] = []
    if len(run.loss):
        look = "behind" if len(held_out) else "line"
        drawn.append(
            Line(f"training {name}", "t0" if len(held_out) else "total", columns, run.loss, look=look, smooth=True)
        )
    if len(held_out):
        drawn.append(Line(f"held-out {name}", "total", columns, held_out, look="dots"))
    if based and len(run.terms) > 1 and len(run.total):
        drawn.append(Line("training loss with all terms", "plain", columns, run.total, hidden=True, smooth=True))
    if drawn:
        kinds = ("resumed", "interrupted")
        moments = [Moment(event.step, event.kind) for event in run.events if event.kind in kinds]
        note = "on data that is not trained on, with the training loss behind it" if len(held_out) else "in training"
        title = f"Held-out {name}" if len(held_out) else name.capitalize()
        found.charts.append(lines(title, drawn, moments=moments, note=note, size="full"))
    return found


def _terms(run: RunLog, css: Mapping[str, str], columns: Columns) -> Section:
    """A small chart of each term: its value in training and held out, and its contribution if the weight changes."""
    found = Section()
    for name, term in run.terms.items():
        if name == BASE:
            continue
        held_out = run.evaluations.values.get(name)
        failed = [failure.step for failure in term.failures]
        drawn = [Line("value", css[name], columns, term.value, failed, smooth=True)]
        if held_out is not None and len(held_out):
            drawn.append(Line("held out", "total", columns, held_out, look="dots"))
        if len(term.contribution):
            added, times = (
                (term.value, float(term.weight.values[0])) if constant(term.weight) else (term.contribution, 1.0)
            )
            drawn.append(
                Line(
                    "contribution",
                    css[name],
                    columns,
                    added,
                    failed,
                    look="dashed",
                    right=True,
                    times=times,
                    smooth=True,
                )
            )
        chart = lines(name, drawn, note=_weighted(term), size="third")
        if failed and not len(term.value):
            continue
        found.add(f"{name} ({_weighted(term)})", drawn if not failed else [], chart)
        if failed:
            found.charts.append(chart)
    weights = [Line(name, css[name], columns, term.weight) for name, term in run.terms.items() if _varies(name, term)]
    if weights:
        numbers = np.concatenate([line.series.finite.values for line in weights])
        positive = numbers[numbers > 0]
        far = bool(len(positive)) and float(positive.max()) > _FAR * float(positive.min()) and not np.any(numbers < 0)
        found.charts.append(
            lines("Weights", weights, log=far, zero=not far, note="as schedules set them", size="third")
        )
    return found


def _varies(name: str, term: TermLog) -> bool:
    return name != BASE and len(term.weight) > 1 and not constant(term.weight)


def _weighted(term: TermLog) -> str:
    """The weight of a term, and what it adds to the loss, at the start and at the end."""
    if not len(term.weight):
        return ""
    weight, added = term.weight.values, term.contribution.finite.values
    words = f"weight {arrow(Ends(float(weight[0]), float(weight[-1]), 1))}"
    return words if not len(added) else f"{words}; adds {arrow(Ends(float(added[0]), float(added[-1]), 1))}"


def _gradient(run: RunLog, css: Mapping[str, str], columns: Columns) -> Section:
    found, apart = Section(), run.measured_elsewhere()
    pulls = {name: term.pull for name, term in run.terms.items() if len(term.pull) and name not in apart}
    if len(pulls) > 1:
        drawn = [Line(name, css[name], columns, series, smooth=True) for name, series in pulls.items()]
        note = "of the sum of the norms of the weighted gradients; choose terms to leave others out"
        found.charts.append(shares("Shares of the gradient", drawn, note=note))
    # The total first, so that a term of almost the same size is drawn over it.
    drawn = [Line("total", "total", columns, run.grad_norm, smooth=True)] if len(run.grad_norm) else []
    drawn += [Line(name, css[name], columns, series, smooth=True) for name, series in pulls.items()]
    if drawn:
        note = f"norm of each weighted gradient, and of their sum{_rarely(run, [line.series for line in drawn])}"
        found.add("Gradient norms", drawn, lines("Gradient norms", drawn, log=True, note=note))
    if apart:
        drawn = [
            Line(f"{name} at the {inputs_in_words(inputs)}", css[name], columns, run.terms[name].pull, smooth=True)
            for name, inputs in apart.items()
        ]
        title, note = "Gradient norms at other inputs", "not comparable with those of the other terms"
        found.add(title, drawn, lines(title, drawn, log=True, note=note))
    return found


def _rarely(run: RunLog, measured: Sequence[Series]) -> str:
    """In how many steps gradients were measured, if not in all."""
    count = len(np.unique(np.concatenate([series.steps for series in measured])))
    every = len(run.steps)
    return "" if count == every else f"; measured in {steps_shown(count)} of {steps_shown(every)} steps"


def _metrics(run: RunLog, css: Mapping[str, str], columns: Columns) -> Section:
    """Metrics of the base loss, of terms and over samples: a chart for each, as their scales have nothing in common."""
    found = Section()
    for (name, metric), (trained, held_out) in run.own_metrics().items():
        drawn = [
            Line("training", css.get(name, "plain"), columns, trained, look="behind", smooth=True),
            Line("held out", "total", columns, held_out, look="dots"),
        ]
        there = [line for line in drawn if len(line.series)]
        if there:
            title = f"{name}/{metric}"
            found.add(title, there, lines(title, there, size="third"))
    for name, series in run.task.items():
        drawn = [Line(name, "plain", columns, series, look="dots")]
        found.add(name, drawn, lines(name, drawn, note="over samples for held-out prompts", size="third"))
    return found


def _time(run: RunLog, css: Mapping[str, str], columns: Columns) -> Section:
    found = Section()
    drawn = [
        Line(name, css[name], columns, term.duration, smooth=True)
        for name, term in run.terms.items()
        if len(term.duration)
    ]
    if len(run.seconds):
        drawn.append(Line("step", "total", columns, run.seconds, smooth=True))
    if drawn:
        found.add("Time", drawn, lines("Time", drawn, log=True, unit="seconds", note="of each step and term"))
    return found
