"""The table and the charts of a comparison."""

from collections.abc import Sequence

from ....pipeline.output import BASE
from ...problems import sized
from ..charts.figure import Figure
from ..charts.lines import lines
from ..charts.scales import seconds, shown, steps_shown
from ..charts.sheet import Frame, Line
from ..runlog import EMPTY, Series
from .contenders import Contender

__all__ = ["comparison_figures", "run_rows"]


def run_rows(found: Sequence[Contender]) -> list[list[str]]:
    """The cells of each run in the table: steps, losses, failures, time, memory."""
    rows: list[list[str]] = []
    for one in found:
        held_out = one.run.evaluations.loss
        rate = one.summary.tokens / one.summary.seconds if one.summary.seconds else 0.0
        rows.append(
            [
                _steps(one),
                _base(one),
                shown(float(held_out.values[-1])) if len(held_out) else "–",
                steps_shown(len(one.summary.broken)),
                steps_shown(one.summary.failures),
                seconds(one.summary.seconds) if one.summary.seconds else "–",
                steps_shown(rate) if rate else "–",
                "–" if one.summary.memory is None else sized(one.summary.memory),
            ]
        )
    return rows


def _steps(one: Contender) -> str:
    done = steps_shown(len(one.run.steps))
    return done if one.unfinished is None else f"{done} of {steps_shown(one.unfinished)}"


def _base(one: Contender) -> str:
    """The base loss at the end; if the total is not finite there, the total."""
    if one.summary.lost_from is not None:
        return shown(float(one.run.total.values[-1]))
    return "–" if one.summary.base is None else shown(one.summary.base.last)


def _metrics(found: Sequence[Contender]) -> list[tuple[str, str, bool, list[Series]]]:
    """The own metrics of terms, in training and held out, and those over samples."""
    charts: list[tuple[str, str, bool, list[Series]]] = []
    own = [one.run.own_metrics() for one in found]
    for name, metric in dict.fromkeys(key for metrics in own for key in metrics):
        both = [metrics.get((name, metric), (EMPTY, EMPTY)) for metrics in own]
        charts.append((f"{name}/{metric}", "in training", False, [trained for trained, _ in both]))
        charts.append(
            (f"{name}/{metric}, held out", "on data that is not trained on", False, [held for _, held in both])
        )
    for name in dict.fromkeys(name for one in found for name in one.run.task):
        note = "over samples for held-out prompts"
        charts.append((name, note, False, [one.run.task.get(name, EMPTY) for one in found]))
    return charts


def comparison_figures(found: Sequence[Contender], points: int) -> list[Figure]:
    """The runs on the same axes: losses, gradient, the value of every term, and metrics."""
    names = dict.fromkeys(name for one in found for name in one.run.terms if name != BASE)
    charts: list[tuple[str, str, bool, list[Series]]] = [
        ("Base loss", "in training, without the other terms", False, [one.run.loss for one in found]),
        (
            "Held-out loss",
            "the base loss on data that is not trained on",
            False,
            [one.run.evaluations.loss for one in found],
        ),
        ("Total loss", "comparable only if weights are equal", False, [one.run.total for one in found]),
        ("Gradient norm", "of the total", True, [one.run.grad_norm for one in found]),
    ]
    for name in names:
        values = [one.run.terms[name].value if name in one.run.terms else EMPTY for one in found]
        charts.append((name, "value, without its weight", False, values))
    charts += _metrics(found)
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
