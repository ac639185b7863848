"""What the page shows of an ablation: its headline, a table of the variants, and the differences seed by seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..ablation import Ablation, analysed, headline, holds_ablation, recorded
from ..ablation.words import HEADER, cells, sentences
from ..runs.disk import RunError
from ..train.progress import short

__all__ = ["AblationSection", "Rows", "ablation_section"]


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: what each row is about, and its cells."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class AblationSection:
    """An ablation in words and tables, and as the data that they come from."""

    found: Ablation
    headline: str
    sentences: Sequence[str]
    tables: Sequence[Rows]


def ablation_section(runs: Sequence[Path]) -> AblationSection | None:
    """The section, if the report is of one folder with an ablation that can be read."""
    if len(runs) != 1 or not holds_ablation(Path(runs[0])):
        return None
    try:
        found = analysed(recorded(Path(runs[0])))
    except RunError:
        # The runs are shown all the same.
        return None
    if not found.rows:
        return None
    return AblationSection(found, headline(found), sentences(found), [*_tables(found)])


def _tables(found: Ablation) -> list[Rows]:
    terms = list(dict.fromkeys(term for row in found.rows for term in row.terms))
    tables = [
        Rows(
            "Variants",
            [*HEADER, *terms],
            [[*cells(row), *(short(row.terms.get(term)) for term in terms)] for row in found.rows],
        )
    ]
    seeds = sorted({seed for row in found.rows if row.effect for seed in (*row.effect.differences, *row.effect.lost)})
    if seeds:
        tables.append(
            Rows(
                f"Difference from {found.baseline} by seed",
                ["variant", *(f"seed {seed}" for seed in seeds)],
                [
                    [row.variant, *(short(row.effect.differences.get(seed)) for seed in seeds)]
                    for row in found.rows
                    if row.effect is not None
                ],
            )
        )
    for swept in found.swept:
        points = [[f"{point.value:g}", point.variant, short(point.mean)] for point in swept.points]
        tables.append(Rows(f"{found.metric} by {swept.key}", [swept.key, "variant", found.metric], points))
    for front in found.fronts:
        points = [
            [point.variant, short(point.base_loss), short(point.value), "yes" if point.best else "no"]
            for point in sorted(front.points, key=lambda point: point.base_loss)
        ]
        header = ["variant", found.metric, front.term, "on the front"]
        tables.append(Rows(f"{found.metric} against {front.term}", header, points))
    return [Rows(f"{table.title[0].upper()}{table.title[1:]}", table.header, table.rows) for table in tables]
