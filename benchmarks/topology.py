"""Topology of 500 points: value and gradient of a term, and Gudhi's own diagrams, which have no gradient."""

import math
from collections.abc import Callable
from typing import Any

import gudhi
import numpy as np
import torch
from gudhi.sklearn import RipsPersistence

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
    for count in (2, 3, 16, 64):
        blob = rng.normal(size=(POINTS, count))
        rows.append(_row(f"rips, normal in {count} dimensions", blob, _ripser(blob), seconds, most=MOST))
    blob = rng.normal(size=(POINTS, 2))
    rows.append(_row("the same in 2, Gudhi by a simplex tree", blob, _collapsed(blob), seconds, most=MOST))
    # A loop that lives through most of the filtration is the worst case of cohomology: no limit.
    rows.append(_row("rips, a noisy ring", ring, _ripser(ring), seconds))
    short = {"max_edge_length": 0.8}
    rows.append(_row("rips, the ring, edges to 0.8", ring, _ripser(ring, 0.8), seconds, most=MOST, **short))
    for name, points in (("the ring", ring), ("normal in 3 dimensions", rng.normal(size=(POINTS, 3)))):
        rows.append(_row(f"alpha, {name}", points, _alpha(points), seconds, most=MOST, filtration="alpha"))
    image = rng.normal(size=(64, 64))
    rows.append(_row("sublevel, 64 x 64 cells", image, _cubical(image), seconds, most=MOST, filtration="sublevel"))
    return rows


def _row(case: str, x: Any, plain: Callable[[], object], seconds: float, **given: Any) -> Row:
    most = given.pop("most", math.inf)
    leaf = torch.tensor(x, dtype=torch.float32, requires_grad=True)
    pipeline = pn.Pipeline([pn.Term(topology.total_persistence, options={"dimensions": (0, 1), **given})])

    def ours() -> None:
        leaf.grad = None
        pipeline(leaf).total.backward()

    return compare(case, plain, ours, seconds=seconds, unit="ms", most=most)


def _ripser(points: Any, longest: float = math.inf) -> Callable[[], object]:
    """Gudhi's fastest way to a diagram."""
    transform = RipsPersistence([0, 1], threshold=longest, homology_coeff_field=2)
    return lambda: transform.fit_transform([points])


def _collapsed(points: Any) -> Callable[[], object]:
    """The recipe for simplex trees: edges up to where nothing is left to happen, collapsed and expanded."""
    limit = np.linalg.norm(points[:, None] - points[None], axis=-1).max(1).min()

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
