"""The tables of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...pipeline.output import BASE
from ..problems import counted
from .charts.chart import Chart
from .charts.columns import Columns
from .charts.lines import Line, spark
from .examples import when
from .failures import kinds
from .numbers import percent, seconds, shown, steps_shown, typeset
from .runlog import RunLog, inputs_in_words
from .summary import Ends, Summary

__all__ = ["arrow", "cosines", "events", "failures", "samples", "term_note", "term_rows", "time_rows"]

_NONE: Final = "–"
_SAMPLED: Final = 6
"""Of how many evaluations samples are shown."""
_EVENTS: Final = 40
"""How many events are listed; a run with many warnings has more."""
_REASONS: Final = 20
"""How many kinds of failures are listed for each term."""


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
    """Failures by term and kind: how often, what it is with its digits masked, the first one, and the last step."""
    rows: list[Row] = []
    for name, term in run.terms.items():
        found = kinds(term.failures)
        for kind in found[:_REASONS]:
            first = f"first at step {steps_shown(kind.first)}" + (f": {kind.reason.strip()}" if kind.varied else "")
            last = _NONE if kind.count == 1 else steps_shown(kind.last)
            what = kind.masked if kind.varied else kind.reason
            rows.append(Row(name, css[name], [steps_shown(kind.count), what.strip(), first, last]))
        if more := found[_REASONS:]:
            rest = f"for {counted(len(more), 'other reason', steps_shown)}, in metrics.jsonl"
            rows.append(Row(name, css[name], [steps_shown(sum(kind.count for kind in more)), rest, "", ""]))
    return rows


@dataclass(frozen=True, slots=True)
class Samples:
    """What the model said, side by side: a row for each prompt, a column for each step."""

    steps: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def samples(run: RunLog) -> Samples | None:
    """What the model said at evaluations from the first to the last; None if it was not sampled."""
    steps = sorted(step for step, said in run.spoken.items() if said)
    count = min(len(steps), _SAMPLED)
    some = [steps[round(place * (len(steps) - 1) / max(1, count - 1))] for place in range(count)]
    prompts = dict.fromkeys(prompt for step in some for prompt, _ in run.spoken[step])
    if not prompts:
        return None
    said = {step: dict(run.spoken[step]) for step in some}
    rows = [(prompt, [said[step].get(prompt, _NONE) for step in some]) for prompt in prompts]
    return Samples([when(step) for step in some], rows)


def _after(step: int) -> str:
    """After which step something happened; nothing before the first one."""
    return steps_shown(step) if step else _NONE


def events(run: RunLog) -> list[tuple[str, str, str]]:
    """What happened to the run: after which step, kind and message; checkpoints are summed up in one line."""
    saved = [event for event in run.events if event.kind == "checkpoint"]
    others = [event for event in run.events if event.kind != "checkpoint"]
    rows = [(_after(event.step), event.kind, typeset(event.message)) for event in others]
    if len(rows) > _EVENTS:
        rows = [*rows[:_EVENTS], ("", "", f"and {steps_shown(len(rows) - _EVENTS)} more in metrics.jsonl")]
    if saved:
        word = "checkpoint" if len(saved) == 1 else "checkpoints"
        rows.append((steps_shown(saved[-1].step), "saved", f"{steps_shown(len(saved))} {word}, the last at this step"))
    return rows


@dataclass(frozen=True, slots=True)
class Cell:
    """The cosine of a pair: its mean as text and as a number, its history, and details."""

    text: str
    mean: float
    chart: Chart | None
    title: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """Cosines below the diagonal: rows are all terms but the first, columns all but the last."""

    names: Sequence[tuple[str, str]]
    """Terms and their CSS classes."""
    rows: Sequence[Sequence[Cell | None]]


def cosines(run: RunLog, summary: Summary, css: Mapping[str, str], columns: Columns) -> Matrix | None:
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
            history = Line("cosine", "total", columns, run.cosines[first, second])
            chart = spark(title, history, low=-1.0, high=1.0) if pair.count > 1 else None
            row.append(Cell(f"{pair.mean:z.2f}".replace("-", "−"), pair.mean, chart, title))
        rows.append(row)
    return Matrix([(name, css[name]) for name in names], rows)
