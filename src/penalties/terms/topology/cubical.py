"""Cubical complexes: the cells of an array appear as a level rises, or as it falls."""

from collections.abc import Sequence

import numpy as np

from .persistence import NEVER, Floats, Indices, Persistence, gudhi, in_order

__all__ = ["cubical"]


def cubical(field: Floats, dimensions: Sequence[int]) -> Persistence:
    """The features of the cells whose value is at most a level, as the level rises.

    Cells that share a corner are connected. As with edges, Gudhi is given the rank of each cell, which says which cell
    it was: that is faster than having it name the cells (27 ms instead of 360 at 512 × 512).
    """
    values: Floats = field.ravel()
    cells: Indices = np.argsort(values)
    ranks = np.empty(len(cells))
    ranks[cells] = np.arange(len(cells))

    transform = gudhi("gudhi.sklearn").CubicalPersistence(list(dimensions), homology_coeff_field=2)
    (diagrams,) = transform.fit_transform([ranks.reshape(field.shape)])
    found = np.concatenate([np.asarray(diagram).reshape(-1, 2) for diagram in diagrams])
    dimension = np.repeat(np.asarray(dimensions, np.intp), [len(diagram) for diagram in diagrams])

    dies = np.isfinite(found[:, 1])
    born = cells[found[:, 0].astype(np.intp)]
    died = np.where(dies, cells[np.where(dies, found[:, 1], 0).astype(np.intp)], NEVER)
    birth, death = values[born], np.where(dies, values[died], np.inf)
    kept = in_order(dimension, birth, death)
    born, died = born[kept], died[kept]

    def pull(births: Floats, deaths: Floats) -> Floats:
        gradient: Floats = np.zeros_like(values)
        np.add.at(gradient, born, births)
        there = died != NEVER
        np.add.at(gradient, died[there], deaths[there])
        return gradient.reshape(field.shape)

    return Persistence(dimension[kept], birth[kept], death[kept], pull)
