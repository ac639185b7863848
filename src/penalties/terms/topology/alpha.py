"""Alpha complexes: balls around points grow, and meet as their radius grows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .persistence import Floats, Indices, Persistence, gudhi, in_order

__all__ = ["alpha"]


def alpha(points: Floats, dimensions: Sequence[int]) -> Persistence:
    """The features of points `(n, d)`. Each is born and dies with a simplex, at the radius of its circumsphere.

    The complex is a part of the Delaunay triangulation, and so small where d is. Points that coincide count once.
    """
    tree = gudhi().AlphaComplex(points=points).create_simplex_tree()
    tree.compute_persistence(homology_coeff_field=2, persistence_dim_max=True)
    pairs = [(born, died) for born, died in tree.persistence_pairs() if len(born) - 1 in dimensions]
    dimension = np.array([len(born) - 1 for born, _ in pairs], np.intp)
    births = _spheres(tree, points, [born for born, _ in pairs])
    deaths = _spheres(tree, points, [died for _, died in pairs])
    # Radii that are equal may differ by rounding, where many points lie on one sphere.
    last = np.where(deaths.radius - births.radius > 1e-9 * deaths.radius, deaths.radius, births.radius)
    kept = in_order(dimension, births.radius, np.where(np.isinf(deaths.radius), np.inf, last))

    def pull(born: Floats, died: Floats) -> Floats:
        gradient = np.zeros_like(points)
        for spheres, slopes in ((births, born), (deaths, died)):
            spread = np.zeros(len(pairs))
            spread[kept] = slopes
            spheres.pull(spread, gradient)
        return gradient

    return Persistence(dimension[kept], births.radius[kept], deaths.radius[kept], pull)


class _Spheres:
    """The smallest spheres through the corners of simplices; infinite where there is no simplex."""

    def __init__(self, points: Floats, simplices: Sequence[Sequence[int]]) -> None:
        self.radius = np.full(len(simplices), np.inf)
        self._parts: list[tuple[Indices, Indices, Floats]] = []
        sizes = np.array([len(simplex) for simplex in simplices], np.intp)
        for size in set(sizes.tolist()) - {0}:
            rows: Indices = np.flatnonzero(sizes == size)
            corners = np.array([simplices[row] for row in rows.tolist()], np.intp)
            self.radius[rows], slopes = _circumscribed(points[corners])
            self._parts.append((rows, corners, slopes))

    def pull(self, slopes: Floats, gradient: Floats) -> None:
        """Add the gradient of a function of the radii to that at the points, from its slope in each."""
        for rows, corners, by_corner in self._parts:
            np.add.at(gradient, corners, slopes[rows, None, None] * by_corner)


def _circumscribed(corners: Floats) -> tuple[Floats, Floats]:
    """The radius for corners `(k, m, d)`, and its slope in each coordinate: `λᵢ(pᵢ − c)/R`, with c = Σ λᵢpᵢ."""
    sides = corners[:, 1:] - corners[:, :1]
    gram = sides @ sides.swapaxes(1, 2)
    squares = np.diagonal(gram, axis1=1, axis2=2)
    # The pseudo-inverse, since corners may lie on a line to within rounding.
    others = np.linalg.pinv(gram, hermitian=True) @ squares[..., None] / 2
    weights = np.concatenate([1 - others.sum(1, keepdims=True), others], 1)
    centre = (weights * corners).sum(1, keepdims=True)
    from_centre = corners - centre
    radius = np.sqrt((from_centre[:, 0] ** 2).sum(-1))
    slopes = weights * from_centre / np.where(radius > 0, radius, np.inf)[:, None, None]
    return radius, slopes


def _spheres(tree: Any, points: Floats, simplices: Sequence[Sequence[int]]) -> _Spheres:
    """Spheres with the radii at which simplices appear in the complex.

    That of a simplex is its own, unless a point lies inside of its sphere: then it appears together with a larger one.
    """
    spheres = _Spheres(points, simplices)
    squares = np.array([tree.filtration(list(simplex)) if simplex else np.inf for simplex in simplices])
    own = np.isclose(spheres.radius**2, squares, rtol=1e-6, atol=0)
    if own.all():
        return spheres
    realising = list(simplices)
    for row in np.flatnonzero(~own).tolist():
        larger = [simplex for simplex, _ in tree.get_cofaces(list(simplices[row]), 0)]
        radii = _Spheres(points, larger).radius
        realising[row] = larger[int(np.abs(radii**2 - squares[row]).argmin())]
    return _Spheres(points, realising)
