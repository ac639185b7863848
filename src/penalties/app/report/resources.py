"""What a run took, tokens per second, memory and learning rate, and what it was made with."""

from dataclasses import dataclass

import numpy as np

from ..problems import sized
from .charts.chart import Chart
from .charts.columns import Columns
from .charts.lines import Line, spark
from .numbers import steps_shown
from .runlog import RunLog, Series
from .sections import constant
from .summary import Ends, Summary
from .tables import arrow

__all__ = ["Tile", "environments", "pace"]


@dataclass(frozen=True, slots=True)
class Tile:
    """A quantity of the whole run: its name, its numbers in words, and its history unless it never changes."""

    name: str
    words: str
    chart: Chart | None


def pace(run: RunLog, summary: Summary, columns: Columns) -> list[Tile]:
    """How fast the run was, what it took, and how far its steps went: tokens per second, memory, learning rate."""
    tiles: list[Tile] = []
    if summary.tokens and summary.seconds:
        history = _ratio(run.tokens.finite, run.seconds.finite)
        tiles.append(
            Tile("tokens/s", steps_shown(summary.tokens / summary.seconds), _small("tokens/s", history, columns))
        )
    if summary.memory is not None:
        tiles.append(Tile("peak memory", sized(summary.memory), _small("memory", run.memory.finite, columns)))
    rates = run.learning_rate.finite
    if len(rates):
        ends = Ends(float(rates.values[0]), float(rates.values[-1]), 1)
        tiles.append(Tile("learning rate", arrow(ends), _small("learning rate", rates, columns)))
    return tiles


def _small(name: str, history: Series, columns: Columns) -> Chart | None:
    if len(history) < 2 or constant(history):
        return None
    return spark(name, Line(name, "total", columns, history), low=0.0)


def _ratio(first: Series, second: Series) -> Series:
    """One series divided by another, at the steps that both have."""
    steps, one, other = np.intersect1d(first.steps, second.steps, return_indices=True)
    divisor = second.values[other]
    good = divisor > 0
    return Series(steps[good], first.values[one][good] / divisor[good])


def environments(run: RunLog) -> list[tuple[str, str]]:
    """What the run was made with: since which step, and the commit and the versions; one row unless it changed."""
    rows: list[tuple[str, str]] = []
    for one in run.environments:
        commit = one.get("commit")
        changed = " with changes" if one.get("changed") else ""
        words = [f"commit {commit}{changed}"] if commit else []
        words += [f"{name} {version}" for name, version in one["versions"].items()]
        rows.append((f"from step {steps_shown(one['step'] + 1)}", ", ".join(words)))
    return rows
