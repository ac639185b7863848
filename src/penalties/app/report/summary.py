"""A run in a few numbers per term, which the verdict and the tables show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from ...pipeline.explanation import CONFLICT
from .runlog import Floats, Ints, RunLog, Series, TermLog

__all__ = ["Ends", "Pair", "Spike", "Summary", "TermSummary", "ends", "shares", "summarise"]

Shares: TypeAlias = Mapping[str, Floats]

_SPIKE: Final = 10.0
"""A loss has spiked if it exceeds those around it by this many times their size."""
_AROUND: Final = 10
"""How many steps before and after it are compared with it."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a series started and ended: means over the first and the last of its finite numbers."""

    first: float
    last: float
    window: int
    """How many numbers each mean is over."""


@dataclass(frozen=True, slots=True)
class TermSummary:
    """One term over a run. Shares are means over all steps; at a step without the term, its share is 0."""

    name: str
    value: Ends | None
    weight: Ends | None
    """The first and the last number."""
    loss_share: float | None
    grad_share: float | None
    """Among the gradients at the inputs where most are measured; None if this one was not measured there."""
    inputs: tuple[str, ...]
    """The inputs at which the gradient is measured, if most are measured elsewhere."""
    share: float | None
    """The share of the gradient if gradients were measured, else of the loss; None if its gradient is measured at other
    inputs."""
    early: float | None
    """The same share in the first quarter of the steps."""
    late: float | None
    """The same share in the last quarter."""
    pull: float | None
    """Median norm of the weighted gradient."""
    ran: int
    """Steps with a value."""
    failed: int
    seconds: float | None
    """The mean time it took per step in which it ran."""
    slowest: float | None


@dataclass(frozen=True, slots=True)
class Pair:
    """The cosine between the gradients of two terms over a run."""

    first: str
    second: str
    mean: float
    lowest: float
    lowest_at: int
    below: float
    """The fraction of measurements in which the terms fight."""
    count: int


@dataclass(frozen=True, slots=True)
class Spike:
    """A step at which the loss was far above the steps around it."""

    step: int
    value: float
    level: float
    """The median of the steps around it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers."""

    loss: Ends | None
    """The ends of the total, without a spike."""
    base: Ends | None
    terms: Mapping[str, TermSummary]
    pairs: Sequence[Pair]
    """The pairs that were measured, the lowest cosine first."""
    tracked: bool
    """Whether gradient norms were measured."""
    broken: Ints
    """Steps at which the total is NaN or infinite."""
    lost_from: int | None
    """The step from which the total is NaN or infinite to the end; None if it ends finite."""
    spike: Spike | None
    peak: tuple[int, float] | None
    """The step and norm of the largest finite gradient."""
    usual: float | None
    """The median norm in the first quarter."""
    failures: int
    seconds: float
    tokens: float
    memory: float | None
    """The peak, in bytes."""


def ends(series: Series) -> Ends | None:
    """The ends of a series; None if it has no finite number.

    >>> import numpy as np
    >>> ends(Series(np.arange(4), np.array([4.0, 3.0, 2.0, 1.0])))
    Ends(first=4.0, last=1.0, window=1)
    """
    values = series.finite.values
    if not len(values):
        return None
    window = max(1, len(values) // 20)
    return Ends(float(values[:window].mean()), float(values[-window:].mean()), window)


def _true_ends(series: Series) -> Ends | None:
    values = series.finite.values
    return Ends(float(values[0]), float(values[-1]), 1) if len(values) else None


def shares(parts: Mapping[str, Series], steps: Ints) -> dict[str, Floats]:
    """The share of each part in the sum of magnitudes at each of these steps; a missing part has a share of 0.

    NaN at steps at which all parts are missing, or one is not finite.

    >>> import numpy as np
    >>> steps = np.arange(2)
    >>> parts = {"a": Series(steps, np.array([3.0, 1.0])), "b": Series(steps[:1], np.array([-1.0]))}
    >>> {name: share.tolist() for name, share in shares(parts, steps).items()}
    {'a': [0.75, 1.0], 'b': [0.25, 0.0]}
    """
    there = np.zeros(len(steps), bool)
    whole = np.zeros(len(steps))
    sizes: dict[str, Floats] = {}
    for name, part in parts.items():
        there |= np.isin(steps, part.steps, assume_unique=True) if len(part) < len(steps) else True
        sizes[name] = np.abs(part.on(steps, missing=0.0))
        whole += sizes[name]
    known = there & np.isfinite(whole)
    divisor = np.where(whole > 0, whole, 1.0)
    with np.errstate(invalid="ignore"):
        return {name: np.where(known, size / divisor, np.nan) for name, size in sizes.items()}


def summarise(run: RunLog) -> Summary:
    """The numbers of a run."""
    loss = shares({name: term.contribution for name, term in run.terms.items()}, run.steps)
    apart = run.measured_elsewhere()
    pulls = {name: term.pull for name, term in run.terms.items() if len(term.pull) and name not in apart}
    gradient = shares(pulls, run.steps)
    tracked = bool(pulls)
    norms = run.grad_norm.finite
    quarter = max(1, len(norms) // 4)
    peak = int(np.argmax(norms.values)) if len(norms) else 0
    spike = _spike(run.total.finite)
    aside = None if spike is None else spike.step
    return Summary(
        loss=ends(run.total.without(aside)),
        base=ends(run.loss.without(aside)),
        terms={
            name: _term(term, loss[name], gradient.get(name), tracked, apart.get(name, ()))
            for name, term in run.terms.items()
        },
        pairs=sorted(_pairs(run), key=lambda pair: pair.mean),
        tracked=tracked,
        broken=run.total.steps[~np.isfinite(run.total.values)],
        lost_from=_lost_from(run.total),
        spike=spike,
        peak=(int(norms.steps[peak]), float(norms.values[peak])) if len(norms) else None,
        usual=float(np.median(norms.values[:quarter])) if len(norms) else None,
        failures=sum(len(term.failures) for term in run.terms.values()),
        seconds=_sum(run.seconds),
        tokens=_sum(run.tokens),
        memory=float(run.memory.finite.values.max()) if len(run.memory.finite) else None,
    )


def _lost_from(total: Series) -> int | None:
    good = np.flatnonzero(np.isfinite(total.values))
    first = int(good[-1]) + 1 if len(good) else 0
    return int(total.steps[first]) if first < len(total) else None


def _spike(total: Series) -> Spike | None:
    """The highest step, if the loss was far lower both before and after it."""
    index = int(np.argmax(total.values)) if len(total) else 0
    before, after = (total.values[part] for part in (slice(max(0, index - _AROUND), index), slice(index + 1, None)))
    after = after[:_AROUND]
    if not len(before) or not len(after):
        return None
    level = max(float(np.median(before)), float(np.median(after)))
    usual = max(abs(level), abs(float(np.median(before)) - float(np.median(after))))
    value = float(total.values[index])
    return Spike(int(total.steps[index]), value, level) if usual and value - level > _SPIKE * usual else None


def _term(term: TermLog, loss: Floats, gradient: Floats | None, tracked: bool, inputs: tuple[str, ...]) -> TermSummary:
    # If others have gradients, a term without one contributes nothing to them.
    leading = loss if not tracked else np.full(len(loss), np.nan if inputs else 0.0) if gradient is None else gradient
    pulls, durations = term.pull.finite.values, term.duration.finite.values
    quarter = max(1, len(loss) // 4)
    return TermSummary(
        name=term.name,
        value=ends(term.value),
        weight=_true_ends(term.weight),
        loss_share=_mean(loss),
        grad_share=None if gradient is None else _mean(gradient),
        inputs=inputs,
        share=_mean(leading),
        early=_mean(leading[:quarter]),
        late=_mean(leading[-quarter:]),
        pull=float(np.median(pulls)) if len(pulls) else None,
        ran=len(term.value),
        failed=len(term.failures),
        seconds=float(durations.mean()) if len(durations) else None,
        slowest=float(durations.max()) if len(durations) else None,
    )


def _sum(series: Series) -> float:
    return float(series.finite.values.sum())


def _mean(values: Floats) -> float | None:
    good = values[np.isfinite(values)]
    return float(good.mean()) if len(good) else None


def _pairs(run: RunLog) -> list[Pair]:
    found: list[Pair] = []
    for (first, second), series in run.cosines.items():
        if len(series):
            lowest = int(np.argmin(series.values))
            found.append(
                Pair(
                    first,
                    second,
                    mean=float(series.values.mean()),
                    lowest=float(series.values[lowest]),
                    lowest_at=int(series.steps[lowest]),
                    below=float((series.values < CONFLICT).mean()),
                    count=len(series),
                )
            )
    return found
