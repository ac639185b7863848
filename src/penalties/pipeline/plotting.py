"""Terms over time, drawn with matplotlib."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from .. import encoding
from ..errors import InputError, OptionError
from ..telemetry.sink import library
from .output import LossOutput

__all__ = ["plot"]

History: TypeAlias = Iterable[LossOutput] | Mapping[int, LossOutput] | str | os.PathLike[str]

_LOGGED: Final = ("pipeline.stop", "custom_loss.stop", "gradients.stop")


def plot(history: History) -> Any:
    """Each term's contribution to the loss over time and, where there are gradients, its share of them.

    Keep `out.read()`, which is numbers: an output itself keeps the graph of its step alive. Returns matplotlib's
    `Figure`, which a notebook shows.

    - `history`: outputs in order, a mapping from steps to outputs, or the path of a log by `telemetry.JSONLines`.

    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.l1, weight=0.1), pn.Term(pn.l2, weight=0.01)])
    >>> history = [pipeline(np.ones(3) / (1 + step)).read() for step in range(10)]
    >>> [axes.get_title() for axes in pn.plot(history).axes]
    ['contribution to the loss']
    """
    outputs = _outputs(history)
    if not outputs:
        raise InputError("plot: the history is empty; append out.read() at each step")
    figures = library("plot", "matplotlib.figure", package="matplotlib", extra="plot")
    panels = [("contribution to the loss", _contributions(outputs))]
    if shares := _grad_shares(outputs):
        panels.append(("share of the gradient", shares))
    figure = figures.Figure(figsize=(6.5 * len(panels), 3.8), layout="constrained")
    for axes, (title, series) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, points in series.items():
            # A single point, or one of every kth step, is seen by its mark.
            marker = "o" if len(points) < len(outputs) or len(points) == 1 else ""
            style = {"color": "gray", "linestyle": "--"} if name == "total" else {}
            axes.plot(list(points), list(points.values()), marker=marker, markersize=3, label=name, **style)
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    figure.axes[-1].set_ylim(*((0, 1) if shares else (None, None)))
    figure.axes[0].legend()
    return figure


def _contributions(outputs: Mapping[int, LossOutput]) -> dict[str, dict[int, float]]:
    series: dict[str, dict[int, float]] = {}
    for step, out in outputs.items():
        for term in out.all:
            if term.contribution is not None:
                series.setdefault(term.name, {})[step] = term.contribution
    return {**series, "total": {step: out.total for step, out in outputs.items()}}


def _grad_shares(outputs: Mapping[int, LossOutput]) -> dict[str, dict[int, float]]:
    series: dict[str, dict[int, float]] = {}
    for step, out in outputs.items():
        numbers = out.metrics(style="slash")
        for name in out.names:
            if (share := numbers.get(f"grad_share/{name}")) is not None:
                series.setdefault(name, {})[step] = share
    return series


def _outputs(history: History) -> dict[int, LossOutput]:
    """The outputs by step, in numbers."""
    if isinstance(history, str | os.PathLike):
        return _logged(Path(history))
    named = isinstance(history, Mapping)
    pairs = cast("Mapping[int, LossOutput]", history).items() if named else enumerate(cast("Iterable[Any]", history))
    outputs: dict[int, LossOutput] = {}
    for step, out in pairs:
        if not isinstance(cast("object", out), LossOutput):
            raise OptionError("plot", "history", type(out).__name__, "outputs of a pipeline, or the path of a log")
        outputs[step] = out.read()
    return outputs


def _logged(path: Path) -> dict[int, LossOutput]:
    if not path.is_file():
        raise OptionError("plot", "history", str(path), "a file that telemetry.JSONLines wrote; there is none")
    outputs: dict[int, LossOutput] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            entry = encoding.loads(line)
            if entry["event"] in _LOGGED:
                # A later event of the same step has what the first has, and the gradients.
                outputs[entry["step"]] = LossOutput.from_dict(entry["output"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"plot: line {number} of {path} is not from telemetry.JSONLines: {error}") from error
    return outputs
