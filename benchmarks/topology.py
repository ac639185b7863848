"""Topology of 500 points: value and gradient of a term, and Gudhi's own complex and diagram, without a gradient."""

from collections.abc import Callable
from typing import Any

import gudhi
import numpy as np
import torch

import penalties as pn
from penalties.terms import topology

from .harness import Row, compare

MOST = 200.0
"""Milliseconds, whatever Gudhi takes."""

POINTS = 500


def run(scale: float) -> list[Row]:
    seconds = 8 * scale
    rng = np.random.default_rng(0)
    angles = 2 * np.pi * rng.uniform(size=POINTS)
    ring = np.stack([np.cos(angles), np.sin(angles)], -1) + 0.1 * rng.normal(size=(POINTS, 2))
    rows: list[Row] = []
    for count in (2, 3, 16):
        blob = rng.normal(size=(POINTS, count))
        rows.append(_row(f"rips, normal in {count} dimensions", blob, _simplified(blob), seconds, most=MOST))
    # The loop of a ring is the worst case of cohomology: it lives through most of the filtration.
    rows.append(_row("rips, a noisy ring", ring, _simplified(ring), seconds))
    options = {"max_edge_length": 0.8}
    rows.append(_row("rips, a ring, edges to 0.8", ring, _simplified(ring, 0.8), seconds, most=MOST, **options))
    for name, points in (("a ring", ring), ("normal in 3 dimensions", rng.normal(size=(POINTS, 3)))):
        rows.append(_row(f"alpha, {name}", points, _alpha(points), seconds, most=MOST, filtration="alpha"))
    image = rng.normal(size=(64, 64))
    rows.append(_row("sublevel, 64 x 64 cells", image, _cubical(image), seconds, most=MOST, filtration="sublevel"))
    return rows


def _row(case: str, x: Any, plain: Callable[[], object], seconds: float, **given: Any) -> Row:
    most = given.pop("most", float("inf"))
    leaf = torch.tensor(x, dtype=torch.float32, requires_grad=True)
    pipeline = pn.Pipeline([pn.Term(topology.total_persistence, options={"dimensions": (0, 1), **given})])

    def ours() -> None:
        leaf.grad = None
        pipeline(leaf).total.backward()

    return compare(case, plain, ours, seconds=seconds, unit="ms", most=most)


def _simplified(points: Any, longest: float | None = None) -> Callable[[], object]:
    """The usual recipe: edges up to the radius where nothing is left to happen, collapsed and expanded."""
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    limit = apart.max(1).min() if longest is None else longest

    def diagram() -> object:
        tree = gudhi.RipsComplex(points=points, max_edge_length=limit).create_simplex_tree(max_dimension=1)
        tree.collapse_edges()
        tree.expansion(2)
        tree.compute_persistence(homology_coeff_field=2)
        return [tree.persistence_intervals_in_dimension(k) for k in (0, 1)]

    return diagram


def _alpha(points: Any) -> Callable[[], object]:
    def diagram() -> object:
        tree = gudhi.AlphaComplex(points=points).create_simplex_tree()
        tree.compute_persistence(homology_coeff_field=2)
        return [tree.persistence_intervals_in_dimension(k) for k in (0, 1)]

    return diagram


def _cubical(image: Any) -> Callable[[], object]:
    def diagram() -> object:
        cells = gudhi.CubicalComplex(top_dimensional_cells=image)
        cells.compute_persistence(homology_coeff_field=2)
        return cells.cofaces_of_persistence_pairs()

    return diagram
