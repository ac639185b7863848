"""The table and the charts of a comparison."""

from collections.abc import Sequence

from ....pipeline.output import BASE
from ...problems import sized
from ..charts.chart import Chart, Size
from ..charts.lines import Line, Look, lines
from ..numbers import seconds, shown, steps_shown
from ..runlog import EMPTY, Series
from .contenders import Contender, ranking

__all__ = ["comparison_charts", "metrics_of", "run_rows"]


def run_rows(found: Sequence[Contender]) -> tuple[list[str], list[list[str]]]:
    """The header of the table of runs, and the cells of each: steps, losses, failures, time, memory.

    The held-out loss is that of the step at which runs are compared. Where a run has no base loss, losses are totals.
    """
    order, (_, evaluated) = ranking(found), _held_out(found)
    based = all(BASE in one.run.terms or not len(one.run.steps) for one in found)
    held_out = f"held-out at step {steps_shown(order.step)}" if order.held_out else "held-out"
    rows: list[list[str]] = []
    for one, series in zip(found, evaluated, strict=True):
        compared = series.at(order.step) if order.held_out else float(series.values[-1]) if len(series) else None
        rate = one.summary.tokens / one.summary.seconds if one.summary.seconds else 0.0
        rows.append(
            [
                _steps(one),
                _end(one, based=based),
                "–" if compared is None else shown(compared),
                steps_shown(len(one.summary.broken)),
                steps_shown(one.summary.failures),
                seconds(one.summary.seconds) if one.summary.seconds else "–",
                steps_shown(rate) if rate else "–",
                "–" if one.summary.memory is None else sized(one.summary.memory),
            ]
        )
    loss = "base loss" if based else "loss"
    return ["steps", loss, held_out, "not finite", "failures", "time", "tokens/s", "memory"], rows


def _steps(one: Contender) -> str:
    done = steps_shown(len(one.run.steps))
    return done if one.unfinished is None else f"{done} of {steps_shown(one.unfinished)}"


def _end(one: Contender, *, based: bool) -> str:
    """The base loss, or the total, at the end; if the total is not finite there, the total."""
    if one.summary.lost_from is not None:
        return shown(float(one.run.total.values[-1]))
    end = one.summary.base if based else one.summary.loss
    return "–" if end is None else shown(end.last)


def comparison_charts(found: Sequence[Contender]) -> list[Chart]:
    """The runs on the same axes: the held-out loss first, then losses in training, terms, metrics and the gradient."""
    names = dict.fromkeys(name for one in found for name in one.run.terms if name != BASE)
    title, held_out = _held_out(found)
    note = "on data that is not trained on"
    base = [one.run.terms[BASE].value if BASE in one.run.terms else EMPTY for one in found]
    charts = [
        _chart(title, found, held_out, note=note, size="full", held_out=True),
        _chart("Base loss", found, base, note="in training, without the other terms"),
        _chart("Total loss", found, [one.run.total for one in found], note="comparable only if weights are equal"),
    ]
    for name in names:
        values = [one.run.terms[name].value if name in one.run.terms else EMPTY for one in found]
        charts.append(_chart(name, found, values, note="value, without its weight"))
    charts += _metrics(found)
    charts.append(_chart("Gradient norm", found, [one.run.grad_norm for one in found], note="of the total", log=True))
    return [chart for chart in charts if chart is not None]


def _held_out(found: Sequence[Contender]) -> tuple[str, list[Series]]:
    """The held-out base loss of each run; the total if one of them has no base loss."""
    evaluated = [one.run.evaluations for one in found if len(one.run.evaluations.total)]
    if all(BASE in one.contributions for one in evaluated):
        return "Held-out base loss", [one.run.evaluations.loss for one in found]
    return "Held-out loss", [one.run.evaluations.total for one in found]


def _metrics(found: Sequence[Contender]) -> list[Chart | None]:
    """The own metrics of terms, in training and held out, and those over samples."""
    charts: list[Chart | None] = []
    own = [one.run.own_metrics() for one in found]
    for name, metric in dict.fromkeys(key for metrics in own for key in metrics):
        trained = [metrics.get((name, metric), (EMPTY, EMPTY))[0] for metrics in own]
        charts.append(_chart(f"{name}/{metric}", found, trained, note="in training"))
    for name, series in metrics_of(found).items():
        samples = any(name in one.run.task for one in found)
        note = "over samples for held-out prompts" if samples else "on data that is not trained on"
        title = name if samples else f"{name}, held out"
        charts.append(_chart(title, found, series, note=note, held_out=True))
    return charts


def metrics_of(found: Sequence[Contender]) -> dict[str, list[Series]]:
    """The metrics on held-out data and over samples by name, of each run; an empty series where a run has none."""
    own = [one.run.own_metrics() for one in found]
    metrics: dict[str, list[Series]] = {}
    for name, metric in dict.fromkeys(key for one in own for key in one):
        metrics[f"{name}/{metric}"] = [one.get((name, metric), (EMPTY, EMPTY))[1] for one in own]
    for name in dict.fromkeys(name for one in found for name in one.run.task):
        metrics[name] = [one.run.task.get(name, EMPTY) for one in found]
    return metrics


def _chart(
    title: str,
    found: Sequence[Contender],
    numbers: Sequence[Series],
    *,
    note: str,
    log: bool = False,
    size: Size = "half",
    held_out: bool = False,
) -> Chart | None:
    """A line for each run that has these numbers; None if none has."""
    look: Look = "dots" if held_out else "line"
    drawn = [
        Line(one.name, one.css, one.columns, series, letter=one.letter, look=look, smooth=not held_out)
        for one, series in zip(found, numbers, strict=True)
        if len(series)
    ]
    return lines(title, drawn, log=log, note=note, size=size) if drawn else None
