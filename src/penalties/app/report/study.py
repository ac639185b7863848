"""What the page shows of many runs that belong together: a headline, sentences, charts and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..ablation import Ablation, analysed, holds_ablation, recorded
from ..ablation import headline as ablation_headline
from ..ablation.words import HEADER, cells, sentences
from ..runs.disk import RunError
from ..search import results
from ..train.progress import short
from .charts.chart import Chart
from .charts.palette import term_class
from .charts.points import Dots, Spot, dots, scatter
from .numbers import typeset

__all__ = ["Rows", "Study", "study_of"]

_NONE: Final = "–"


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: what each row is about, and its cells."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Study:
    """An ablation or a search in words and tables, and as the data that they come from."""

    title: str
    found: Ablation | results.Found
    headline: str
    sentences: Sequence[str]
    charts: Sequence[Chart]
    tables: Sequence[Rows]


def study_of(runs: Sequence[Path]) -> Study | None:
    """The section, if the report is of one folder with an ablation or a search that can be read."""
    if len(runs) != 1:
        return None
    folder = Path(runs[0])
    try:
        if holds_ablation(folder):
            ablation = analysed(recorded(folder))
            words = ablation_headline(ablation), sentences(ablation)
            parts = _charts(ablation), _tables(ablation)
            return _study("Ablation", ablation, *words, *parts) if ablation.rows else None
        if results.holds_search(folder):
            found = results.found_in(folder)
            words = results.headline(found), results.sentences(found)
            parts = _trade_off(found), _trials(found)
            return _study("Search", found, *words, *parts) if found.trials else None
    except RunError:
        # The runs are shown all the same.
        pass
    return None


def _study(
    title: str,
    found: Ablation | results.Found,
    headline: str,
    lines: Sequence[str],
    charts: Sequence[Chart],
    tables: Sequence[Rows],
) -> Study:
    """The section, with words and numbers as on the rest of the page."""
    typed = [
        Rows(
            one.title,
            one.header,
            [[row[0], *(_NONE if cell == "-" else typeset(cell) for cell in row[1:])] for row in one.rows],
        )
        for one in tables
    ]
    return Study(title, found, typeset(headline), [typeset(line) for line in lines], charts, typed)


def _charts(found: Ablation) -> list[Chart]:
    """The effects by seed, the loss against what was swept, and its trade-off with each term."""
    # Those without a term come in the order of terms, and so each has the colour that its term has on the page.
    others = [row.variant for row in found.rows if row.variant != found.baseline]
    css = {found.baseline: term_class(0, base=True)}
    css |= {name: term_class(index, base=False) for index, name in enumerate(others)}
    effects = [
        Dots(
            row.variant,
            css[row.variant],
            [*effect.differences.values()],
            effect.mean,
            effect.low,
            effect.high,
            [f"seed {seed}" for seed in effect.differences],
        )
        for row in found.rows
        if (effect := row.effect) is not None and effect.differences
    ]
    charts: list[Chart] = []
    if effects:
        note = "a dot for each seed, and 95 % intervals, uncorrected"
        charts.append(dots(f"Difference from {found.baseline}", effects, x_name=f"Δ {found.metric}", note=note))
    metric = f"{found.metric[0].upper()}{found.metric[1:]}"
    for swept in found.swept:
        spots = [
            Spot(one.variant, css[one.variant], one.value, one.mean) for one in swept.points if one.mean is not None
        ]
        title = f"{metric} by {swept.key}"
        # Values to try are powers of something, and often 0 as well.
        scale = "log" if swept.positive else "asinh"
        charts.append(scatter(title, spots, x_name=swept.key, y_name=found.metric, x_scale=scale, joined=True))
    for front in found.fronts:
        spots = [Spot(one.variant, css[one.variant], one.value, one.base_loss, one.best) for one in front.points]
        charts.append(scatter(f"{metric} against {front.term}", spots, x_name=front.term, y_name=found.metric))
    return charts


def _trade_off(found: results.Found) -> list[Chart]:
    """The trials by the first two metrics that they are traded off by."""
    if len(found.axes) < 2:
        return []
    first, second = (axis.name for axis in found.axes[:2])
    best = found.front
    spots = [
        Spot(
            trial.folder.name,
            term_class(0, base=trial not in best),
            trial.metrics[second],
            trial.metrics[first],
            trial in best,
        )
        for trial in found.trials
        if found.complete(trial)
    ]
    return [scatter(f"{first} against {second}", spots, x_name=second, y_name=first, size="full")]


def _tables(found: Ablation) -> list[Rows]:
    terms = list(dict.fromkeys(term for row in found.rows for term in row.terms))
    variants = [[*cells(row), *(short(row.terms.get(term)) for term in terms)] for row in found.rows]
    tables = [Rows("Variants", [*HEADER, *terms], variants)]
    compared = {row.variant: row.effect for row in found.rows if row.effect is not None}
    seeds = sorted({seed for effect in compared.values() for seed in (*effect.differences, *effect.lost)})
    if seeds:
        rows = [
            [variant, *(short(effect.differences.get(seed)) for seed in seeds)] for variant, effect in compared.items()
        ]
        title = f"Difference from {found.baseline} by seed"
        tables.append(Rows(title, ["variant", *(f"seed {seed}" for seed in seeds)], rows))
    metric = f"{found.metric[0].upper()}{found.metric[1:]}"
    for swept in found.swept:
        points = [[f"{point.value:g}", point.variant, short(point.mean)] for point in swept.points]
        tables.append(Rows(f"{metric} by {swept.key}", [swept.key, "variant", found.metric], points))
    for front in found.fronts:
        points = [
            [point.variant, short(point.base_loss), short(point.value), "yes" if point.best else "no"]
            for point in sorted(front.points, key=lambda point: point.base_loss)
        ]
        header = ["variant", found.metric, front.term, "on the front"]
        tables.append(Rows(f"{metric} against {front.term}", header, points))
    return tables


def _trials(found: results.Found) -> list[Rows]:
    best = found.front
    keys = list(dict.fromkeys(key for trial in found.trials for key in trial.settings))
    header = ["trial", *keys, *(axis.name for axis in found.axes), "standing"]
    front = Rows("Pareto front", header, [results.cells(found, trial, keys, best) for trial in best])
    every = Rows("Trials", header, [results.cells(found, trial, keys, best) for trial in found.trials])
    return [*([front] if len(found.axes) > 1 and best else []), every]
