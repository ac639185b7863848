"""What an ablation shows, in words and in a table."""

import math
from collections.abc import Iterator, Sequence

from ...pipeline.table import table
from ..problems import counted, joined
from ..train.progress import short
from .effects import Ablation, Effect, Row
from .outcomes import ALL
from .statistics import CONFIDENCE, FEWEST, LEVEL, POWER

__all__ = ["HEADER", "cells", "headline", "probability", "sentences", "shown"]

HEADER = ("variant", "base loss", "difference", f"{CONFIDENCE:.0%} interval".replace("%", " %"), "adjusted p")
"""The columns of the table, before those of the terms."""


def headline(found: Ablation) -> str:
    """What is claimed, and what is not shown, in a sentence or two.

    Of removed terms it says which helped and which cost; of other variants which ended higher or lower.
    """
    compared = [row for row in found.rows if row.effect is not None]
    if not compared:
        return f"There is nothing to compare by {found.metric}."
    if not found.complete:
        return f"Nothing is claimed yet: {found.ended} of {counted(found.runs, 'run')} ended."
    if not found.enough:
        return f"Nothing is claimed: {counted(found.seeds, 'seed')}; at least {FEWEST} are needed."
    groups: dict[str, list[str]] = {}
    for row in compared:
        verb, name = _claim(found, row)
        groups.setdefault(verb, []).append(name)
    parts = [f"{joined(names, 'and')} {verb}" for verb, names in groups.items() if verb]
    if groups.get(""):
        parts.append(f"no effect of {joined(groups[''], 'or')} was shown")
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}." if said.startswith("no ") else f"{said}."


def _claim(found: Ablation, row: Row) -> tuple[str, str]:
    """The verb of what is claimed of a variant, empty if nothing is; and its subject."""
    assert row.effect is not None
    higher = row.effect.mean > 0
    if row.removed is not None and found.baseline == ALL:
        return ("" if not row.effect.claimed else "helped" if higher else "cost"), row.removed
    ended = "higher" if higher else "lower"
    # One that sets several values has commas in its name, and would read as several.
    name = f'"{row.variant}"' if "," in row.variant else row.variant
    return (f'ended {ended} than "{found.baseline}"' if row.effect.claimed else ""), name


def sentences(found: Ablation) -> list[str]:
    """One for each comparison, and what they rest on."""
    lines = [_sentence(found, row) for row in found.rows if row.effect is not None]
    return [*lines, *_remarks(found)]


def _sentence(found: Ablation, row: Row) -> str:
    effect = row.effect
    assert effect is not None
    if not found.complete:
        return _so_far(row, effect)
    if effect.equal:
        return f"{row.variant}: the losses are those of {found.baseline}, to the last bit, in every seed."
    ended = f"{row.variant}: the {found.metric} ended {_by(effect.mean)}"
    if math.isnan(effect.deviation):
        return f"{ended} with {counted(len(effect.differences), 'seed')}." if effect.differences else _lost(row, effect)
    evidence = f"interval {short(effect.low)} to {short(effect.high)}, adjusted p {probability(effect.adjusted)}"
    if effect.claimed:
        verb, name = _claim(found, row)
        meaning = f": {name} {verb}" if row.removed == name else ""
        return f"{ended} ({evidence}){meaning}."
    if effect.lost:
        return f"{_lost(row, effect)} In the others it ended {_by(effect.mean)} ({evidence})."
    reach = f"; {short(effect.detectable)} would have been found with a probability of {_percent(POWER)}"
    return f"{ended} ({evidence}): no effect is shown{reach if found.enough else ''}."


def _so_far(row: Row, effect: Effect) -> str:
    seeds = len(effect.differences)
    if not seeds:
        return f"{row.variant}: no pair of runs has ended."
    pairs = "1 pair" if seeds == 1 else f"{seeds} pairs"
    return f"{row.variant}: {_by(effect.mean)} so far, in {pairs} of runs."


def _by(mean: float) -> str:
    return f"{short(abs(mean))} {'higher' if mean > 0 else 'lower'}"


def _lost(row: Row, effect: Effect) -> str:
    seeds = len(effect.lost) + len(effect.differences)
    return f"{row.variant}: lost in {len(effect.lost)} of {counted(seeds, 'seed')} (failed, or not finite): no claim."


def _remarks(found: Ablation) -> Iterator[str]:
    for row in found.rows:
        if row.apart:
            are = "is" if len(row.apart) == 1 else "are"
            yield f"{row.variant} is not compared: its {joined(row.apart, 'and')} {are} not that of {found.baseline}."
    if found.comparisons:
        yield (
            f"Differences from {found.baseline} are taken seed by seed. Intervals are {_percent(CONFIDENCE)} "
            "t-intervals of each variant by itself, uncorrected; an effect is claimed where p, adjusted by Holm's "
            f"method for {counted(found.comparisons, 'comparison')}, is below {LEVEL:g}, with at least {FEWEST} seeds."
        )
    if found.power is not None and found.complete:
        yield (
            f"With {found.seeds} seeds and {counted(found.comparisons, 'comparison')}, an effect of {found.power:.1f} "
            f"standard deviations of the differences would be found with a probability of {_percent(POWER)}."
        )
    if found.steps is not None and found.steps[0] != found.steps[1]:
        yield f"Runs ended at different steps, from {found.steps[0]} to {found.steps[1]}: each counts as it ended."


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def probability(p: float) -> str:
    """A p-value with two digits.

    >>> probability(0.0312), probability(1.2e-9), probability(1.0), probability(float("nan"))
    ('0.031', '<0.0001', '1', '-')
    """
    if math.isnan(p):
        return "-"
    return "<0.0001" if p < 1e-4 else f"{p:.2g}"


def cells(row: Row) -> list[str]:
    """The cells of a variant, without those of the terms."""
    loss = "failed" if row.errors else "-"
    if row.mean is not None:
        loss = short(row.mean) if row.deviation is None else f"{short(row.mean)} ± {short(row.deviation)}"
    effect = row.effect
    if effect is None or not effect.differences:
        return [row.variant, loss, "", "", ""]
    interval = "" if math.isnan(effect.low) else f"{short(effect.low)} to {short(effect.high)}"
    p = "" if math.isnan(effect.adjusted) else f"{probability(effect.adjusted)}{' *' if effect.claimed else ''}"
    return [row.variant, loss, short(effect.mean), interval, p]


def shown(found: Ablation) -> list[str]:
    """A table of the variants, what it shows, and what failed."""
    terms = list(dict.fromkeys(term for row in found.rows for term in row.terms))
    lines: Sequence[Sequence[str]] = [
        [*cells(row), *(short(row.terms.get(term)) for term in terms)] for row in found.rows
    ]
    failed = [f"{row.variant}: {error}" for row in found.rows for error in row.errors]
    return [*table([*HEADER, *terms], lines), *failed, headline(found), *_remarks(found)]
