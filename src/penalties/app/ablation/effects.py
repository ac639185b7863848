"""What an ablation shows, as data: differences by seed, intervals, tests, swept values and fronts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .outcomes import ALL, Facts, Outcome, Recorded
from .statistics import FEWEST, Numbers, detectable, on_front, paired

__all__ = ["Ablation", "Effect", "Front", "FrontPoint", "Row", "Swept", "SweptPoint", "analysed"]


@dataclass(frozen=True, slots=True)
class Effect:
    """How a variant differs from the baseline, seed by seed."""

    differences: Mapping[int, float]
    """Of the base loss, by seed: positive where the variant's is higher."""
    lost: Sequence[int]
    """The seeds where one of the two runs failed, or ended with a loss that is not finite."""
    pending: Sequence[int]
    """The seeds of the baseline with which the variant's run has not ended."""
    mean: float
    deviation: float
    """The standard deviation of the differences; NaN with one seed."""
    low: float
    """The 95 % interval of the mean by itself, not corrected for the number of comparisons."""
    high: float
    p: float
    adjusted: float
    """The p-value, adjusted for all comparisons by Holm's method."""
    claimed: bool
    """Whether it is shown that the variant differs: by `adjusted`, with enough seeds, none of them lost, at the end."""
    detectable: float
    """The difference that would be found with a probability of 80 %, if its deviation is as measured.

    NaN where there are too few seeds to claim anything.
    """

    @property
    def equal(self) -> bool:
        """Whether the losses are equal to the last bit in every seed."""
        return bool(self.differences) and not any(self.differences.values())


@dataclass(frozen=True, slots=True)
class Row:
    """A variant over its seeds."""

    variant: str
    removed: str | None
    losses: Mapping[int, float]
    """The base loss by seed; without those that failed."""
    mean: float | None
    deviation: float | None
    """None with one seed."""
    terms: Mapping[str, float]
    """The mean of the value of each term that it has."""
    errors: Sequence[str]
    effect: Effect | None
    """None for the baseline, and where the losses cannot be compared."""
    apart: Sequence[str]
    """The keys by which its base loss is a measure of something else than the baseline's."""


@dataclass(frozen=True, slots=True)
class SweptPoint:
    """One value of a key that was swept."""

    value: float
    variant: str
    losses: Mapping[int, float]
    mean: float | None


@dataclass(frozen=True, slots=True)
class Swept:
    """The base loss against the values of a key, in ascending order."""

    key: str
    points: Sequence[SweptPoint]

    @property
    def positive(self) -> bool:
        """Whether a log axis has room for all values."""
        return all(point.value > 0 for point in self.points)


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A variant by the means of its base loss and of one term."""

    variant: str
    base_loss: float
    value: float
    best: bool
    """Whether no other variant is lower in one and not higher in the other."""


@dataclass(frozen=True, slots=True)
class Front:
    """The trade-off between the base loss and a term."""

    term: str
    points: Sequence[FrontPoint]


@dataclass(frozen=True, slots=True)
class Ablation:
    """What an ablation shows."""

    metric: str
    """The one quantity that is compared."""
    baseline: str
    seeds: int
    comparisons: int
    power: float | None
    """The effect that would be found with a probability of 80 %, in standard deviations of the differences.

    None where nothing is compared, or there are too few seeds to claim anything.
    """
    rows: Sequence[Row]
    swept: Sequence[Swept]
    fronts: Sequence[Front]
    steps: tuple[int, int] | None
    """The first and the last step at which a run ended; None if nothing was measured."""
    ended: int
    """How many runs have ended, well or not."""
    runs: int
    """How many runs there are to be."""

    @property
    def enough(self) -> bool:
        """Whether there are enough seeds to claim anything."""
        return self.seeds >= FEWEST

    @property
    def complete(self) -> bool:
        """Whether every run has ended: a test at every look would find effects in chance, sooner or later."""
        return self.ended >= self.runs


def analysed(record: Recorded) -> Ablation:
    """What the outcomes of an ablation show."""
    outcomes = record.outcomes
    names = list(dict.fromkeys(outcome.variant for outcome in outcomes))
    by_name = {name: [one for one in outcomes if one.variant == name] for name in names}
    whole = {one.seed: one for one in by_name.get(record.baseline, [])}
    facts = {name: record.variants.get(name, Facts({}, None, {})) for name in names}
    base = facts.get(record.baseline, Facts({}, None, {})).measure
    apart = {name: [key for key, value in base.items() if facts[name].measure.get(key) != value] for name in names}
    others = [name for name in names if name != record.baseline and not apart[name]]
    runs = len(outcomes) if record.runs is None else record.runs
    effects = _effects(whole, {name: by_name[name] for name in others}, complete=len(outcomes) >= runs)
    rows = [_row(by_name[name], facts[name], effects.get(name), apart[name]) for name in names]
    seeds, comparisons = len(whole), len(effects)
    ended = [one.step for one in outcomes if one.step is not None]
    held_out = all(one.held_out for one in outcomes if one.base_loss is not None)
    return Ablation(
        metric="held-out base loss" if held_out else "base loss",
        baseline=record.baseline,
        seeds=seeds,
        comparisons=comparisons,
        power=detectable(seeds, comparisons) if seeds >= FEWEST and comparisons else None,
        rows=rows,
        swept=_swept(rows, {name: facts[name].settings for name in names}),
        fronts=_fronts(rows),
        steps=(min(ended), max(ended)) if ended else None,
        ended=len(outcomes),
        runs=runs,
    )


def _effects(
    whole: Mapping[int, Outcome], others: Mapping[str, Sequence[Outcome]], *, complete: bool
) -> dict[str, Effect]:
    """The effect of each variant; none where no run has a base loss."""
    seeds = sorted(whole)
    if not others or all(one.base_loss is None for one in whole.values()):
        return {}
    before = _losses(whole, seeds)
    with np.errstate(invalid="ignore"):
        differences = np.stack([_losses({one.seed: one for one in own}, seeds) - before for own in others.values()])
    found = paired(differences)
    power = detectable(len(seeds), len(others)) if len(seeds) >= FEWEST else math.nan
    effects: dict[str, Effect] = {}
    for index, name in enumerate(others):
        row = dict(zip(seeds, differences[index].tolist(), strict=True))
        there = {one.seed for one in others[name]}
        pending = [seed for seed in seeds if seed not in there]
        lost = [seed for seed, value in row.items() if not math.isfinite(value) and seed in there]
        numbers = (found.mean, found.deviation, found.low, found.high, found.p, found.adjusted)
        effects[name] = Effect(
            {seed: value for seed, value in row.items() if math.isfinite(value)},
            lost,
            pending,
            *(float(part[index]) for part in numbers),
            # The seeds that are left may be those on which it did well.
            claimed=bool(found.claimed[index]) and not lost and complete,
            detectable=power * float(found.deviation[index]),
        )
    return effects


def _losses(found: Mapping[int, Outcome], seeds: Sequence[int]) -> Numbers:
    losses = [found[seed].base_loss if seed in found else None for seed in seeds]
    return np.array([math.nan if loss is None else loss for loss in losses], float)


def _row(own: Sequence[Outcome], facts: Facts, effect: Effect | None, apart: Sequence[str]) -> Row:
    losses = {one.seed: one.base_loss for one in own if one.base_loss is not None}
    names = dict.fromkeys(name for one in own for name in one.terms)
    values = list(losses.values())
    return Row(
        own[0].variant,
        facts.removed,
        losses,
        mean=_mean(values) if values else None,
        deviation=float(np.std(values, ddof=1)) if len(values) > 1 and all(map(math.isfinite, values)) else None,
        terms={name: _mean([one.terms[name] for one in own if name in one.terms]) for name in names},
        errors=[one.error for one in own if one.error is not None],
        effect=effect,
        apart=apart,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _swept(rows: Sequence[Row], settings: Mapping[str, Mapping[str, Any]]) -> list[Swept]:
    """The numbers that were set, by key; a variant that sets several keys is on no line."""
    keys = dict.fromkeys(key for row in rows for key in settings[row.variant])
    made: list[Swept] = []
    for key in keys:
        points: list[SweptPoint] = []
        for row in rows:
            value = settings[row.variant].get(key)
            if value is not None and _is_number(value) and not row.apart and _alone(row, key, settings):
                points.append(SweptPoint(float(value), row.variant, row.losses, row.mean))
        if len(points) > 1:
            made.append(Swept(key, sorted(points, key=lambda point: point.value)))
    return made


def _alone(row: Row, key: str, settings: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a variant differs from the full objective in this key alone, or is that."""
    own, full = settings[row.variant], settings.get(ALL, {})
    return all(value == full.get(other) for other, value in own.items() if other != key)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _fronts(rows: Sequence[Row]) -> list[Front]:
    """The front of the base loss against each term that several variants have."""
    made: list[Front] = []
    for term in dict.fromkeys(name for row in rows for name in row.terms):
        there = [
            (row.variant, row.mean, row.terms[term])
            for row in rows
            if term in row.terms and row.mean is not None and not row.apart
        ]
        there = [one for one in there if math.isfinite(one[1]) and math.isfinite(one[2])]
        if len(there) > 1:
            best = on_front(np.array([one[1:] for one in there]))
            points = [FrontPoint(*one, best=bool(which)) for one, which in zip(there, best, strict=True)]
            made.append(Front(term, points))
    return made
