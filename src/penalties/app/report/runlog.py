"""The log of a run as columns: numbers by step."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ...pipeline.output import BASE

if TYPE_CHECKING:
    from .records import TextRecord

__all__ = [
    "EMPTY",
    "Evaluations",
    "Event",
    "Failure",
    "Floats",
    "Ints",
    "RunLog",
    "Series",
    "TermLog",
    "inputs_in_words",
]

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_WORDS: Final = {
    "flat_logprobs": "log-probabilities",
    "logprobs": "log-probabilities",
    "flat_logits": "logits",
    "logits": "logits",
    "params": "parameters",
    "parameters": "parameters",
}


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Numbers at increasing steps. A step without a number is left out; NaN and infinity count as numbers."""

    steps: Ints
    values: Floats

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.steps)

    @property
    def finite(self) -> "Series":
        """The finite part of the series."""
        good = np.isfinite(self.values)
        return self if bool(good.all()) else Series(self.steps[good], self.values[good])

    def without(self, step: int | None) -> "Series":
        """The series without this step, or all of it for None."""
        if step is None:
            return self
        kept = self.steps != step
        return Series(self.steps[kept], self.values[kept])

    def at(self, step: int) -> float | None:
        """The number at a step; None if there is none."""
        index = int(np.searchsorted(self.steps, step))
        there = index < len(self.steps) and self.steps[index] == step
        return float(self.values[index]) if there else None

    def on(self, steps: Ints, missing: float = np.nan) -> Floats:
        """A value for each of these steps, which must include all steps of the series."""
        if len(self) == len(steps):
            return self.values.copy()
        values = np.full(len(steps), missing)
        values[np.searchsorted(steps, self.steps)] = self.values
        return values


EMPTY: Final = Series(np.empty(0, np.int64), np.empty(0))
"""A series without numbers; never modified."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that a term was left out of, and why."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class TermLog:
    """One term over a run. The base loss counts as a term with weight 1."""

    name: str
    value: Series = EMPTY
    weight: Series = EMPTY
    contribution: Series = EMPTY
    grad_norm: Series = EMPTY
    """The norm of the unweighted gradient."""
    pull: Series = EMPTY
    """The norm of the weighted gradient: what the term does to the parameters."""
    duration: Series = EMPTY
    """Seconds."""
    failures: Sequence[Failure] = ()
    grad_error: str | None = None
    """Why it has no gradient, if the log says so."""
    inputs: tuple[str, ...] = ()
    """What its gradient is measured with respect to, if the log says so."""
    metrics: Mapping[str, Series] = field(default_factory=dict[str, Series])
    """Its own metrics."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the run: it was resumed, warned, saved, finished, interrupted."""

    step: int
    kind: str
    message: str
    best: int | None = None
    """At a checkpoint: the step of the best one so far, which is kept beside it."""
    early: bool = False
    """At the end: whether the run ended before its last step, since it did not improve any more."""


@dataclass(frozen=True, slots=True)
class Evaluations:
    """Losses on held-out data: the total, and the contribution of every term, the base loss included."""

    total: Series = EMPTY
    contributions: Mapping[str, Series] = field(default_factory=dict[str, Series])
    metrics: Mapping[tuple[str, str], Series] = field(default_factory=dict[tuple[str, str], Series])
    """The own metrics of terms, by term and name."""
    values: Mapping[str, Series] = field(default_factory=dict[str, Series])
    """The value of every term, the base loss included, without its weight."""

    @property
    def loss(self) -> Series:
        """The base loss, which is comparable between runs with different weights; the total if there is none."""
        return self.contributions.get(BASE, self.total)


@dataclass(frozen=True, slots=True)
class RunLog:
    """One run: every number by step, every failure and event, and the config."""

    steps: Ints
    total: Series = EMPTY
    grad_norm: Series = EMPTY
    """Of the total."""
    seconds: Series = EMPTY
    tokens: Series = EMPTY
    learning_rate: Series = EMPTY
    terms: Mapping[str, TermLog] = field(default_factory=dict[str, TermLog])
    """By name, the base loss first."""
    cosines: Mapping[tuple[str, str], Series] = field(default_factory=dict[tuple[str, str], Series])
    """Between the gradients of two terms, in the order of the terms."""
    evaluations: Evaluations = Evaluations()
    spoken: Mapping[int, Sequence[tuple[str, str]]] = field(default_factory=dict[int, Sequence[tuple[str, str]]])
    """Prompts and what the model said to them, by the number of finished steps."""
    task: Mapping[str, Series] = field(default_factory=dict[str, Series])
    """Metrics over samples."""
    examples: "Mapping[int, Sequence[TextRecord]]" = field(default_factory=dict[int, "Sequence[TextRecord]"])
    """Held-out texts with the loss of each token, of the first evaluation and of the last, by step."""
    events: Sequence[Event] = ()
    config: Mapping[str, Any] | None = None
    environments: Sequence[Mapping[str, Any]] = ()
    """What it was made with, since which step: versions, and the commit of the working directory."""
    started: str | None = None
    """The time in the first line."""
    torn: bool = False
    """Whether the last line is incomplete: the run was killed while writing it, or is writing it now."""
    unreadable: Sequence[int] = ()
    """The numbers of other lines that could not be read."""
    folder: str = ""
    """Its path, as given by the user."""
    memory: Series = EMPTY
    """The peak so far, in bytes."""

    @property
    def loss(self) -> Series:
        """The base loss if there is one, else the total."""
        return self.terms[BASE].value if BASE in self.terms else self.total

    @property
    def wanted(self) -> int | None:
        """How many steps the config asks for."""
        steps = self.training("steps")
        return steps if isinstance(steps, int) else None

    @property
    def early(self) -> bool:
        """Whether it ended early, because it did not improve any more."""
        return any(event.kind == "finished" and event.early for event in self.events)

    def own_metrics(self) -> dict[tuple[str, str], tuple[Series, Series]]:
        """By term and name: the own metrics of terms, in training and held out.

        One that repeats the value of its term is left out.
        """
        names = dict.fromkeys((name, metric) for name, term in self.terms.items() for metric in term.metrics)
        names |= dict.fromkeys(self.evaluations.metrics)
        found: dict[tuple[str, str], tuple[Series, Series]] = {}
        for name, metric in names:
            term = self.terms.get(name, TermLog(name))
            trained = term.metrics.get(metric, EMPTY)
            held_out = self.evaluations.metrics.get((name, metric), EMPTY)
            if not _same(trained, term.value):
                found[name, metric] = trained, held_out
        return found

    def training(self, key: str) -> Any:
        """The value of a key in the config's `[train]` table; None if it has none."""
        train = (self.config or {}).get("train")
        return cast("dict[str, Any]", train).get(key) if isinstance(train, dict) else None

    def measured_elsewhere(self) -> dict[str, tuple[str, ...]]:
        """The terms whose gradients are measured at other inputs than most, with those inputs.

        Norms are comparable only at the same inputs. At a tie, those of the base loss count as the usual ones.
        """
        inputs = {name: term.inputs for name, term in self.terms.items() if len(term.pull) and term.inputs}
        counts = Counter(inputs.values())
        if len(counts) < 2:
            return {}
        common = max(counts, key=lambda names: (counts[names], names == inputs.get(BASE)))
        return {name: names for name, names in inputs.items() if names != common}


def _same(first: Series, second: Series) -> bool:
    return (
        bool(len(first))
        and np.array_equal(first.steps, second.steps)
        and np.allclose(first.values, second.values, rtol=1e-5, atol=1e-12, equal_nan=True)
    )


def inputs_in_words(inputs: Sequence[str]) -> str:
    """What gradients are measured with respect to, in words.

    >>> inputs_in_words(("flat_logits", "params"))
    'logits and parameters'
    """
    return " and ".join(dict.fromkeys(_WORDS.get(name, name) for name in inputs))
