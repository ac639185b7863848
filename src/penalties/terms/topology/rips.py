"""Vietoris-Rips: points grow together as the length of the edges between them grows."""

from collections.abc import Sequence

import numpy as np

from ...errors import NonFiniteError
from .persistence import NEVER, Floats, Indices, Persistence, gudhi, in_order, scipy
from .stopping import Ranks, last_birth

__all__ = ["rips"]


def rips(function: str, points: Floats, dimensions: Sequence[int], max_edge_length: float) -> Persistence:
    """The features of points `(n, d)`. Each is born and dies with an edge, at the length of that edge.

    Gudhi is given the rank of each edge in the order of lengths instead of the length. The persistence of ranks is the
    same but for its scale, and a rank says which edge it was: also after simplifications that keep the diagram and
    lose the edges, such as edge collapses, and also where two edges are equally long.
    """
    lengths: Floats = scipy("spatial.distance").pdist(points)
    if not np.isfinite(lengths).all():
        raise NonFiniteError.of(np.inf, f"{function}: distances between points of x overflow; scale it down")
    edges: Indices = np.argsort(lengths)
    ranks = np.empty(len(edges), np.uint32)
    ranks[edges] = np.arange(1, len(edges) + 1)
    last = int(np.searchsorted(lengths[edges], max_edge_length, side="right"))

    diagrams = _diagrams(scipy("spatial.distance").squareform(ranks, force="tomatrix"), dimensions, last)
    found = np.concatenate(diagrams)
    dimension = np.repeat(np.asarray(dimensions, np.intp), [len(diagram) for diagram in diagrams])

    # A point is there from the start: rank 0.
    padded = np.concatenate([[0.0], lengths[edges]])
    ends = np.where(np.isfinite(found), found, 0).astype(np.intp)
    birth, death = padded[ends[:, 0]], np.where(np.isfinite(found[:, 1]), padded[ends[:, 1]], np.inf)
    kept = in_order(dimension, birth, death)
    realised = np.concatenate([np.array([NEVER], np.intp), edges])[ends[kept]]

    def pull(births: Floats, deaths: Floats) -> Floats:
        gradient = np.zeros_like(points)
        for slopes, which in ((births, realised[:, 0]), (deaths, realised[:, 1])):
            there = which != NEVER
            a, b = _ends(which[there], len(points))
            along = points[a] - points[b]
            # Only a point is born at length 0, and of an edge that long there is no direction.
            length = lengths[which[there]]
            step = slopes[there] / np.where(length > 0, length, np.inf)
            np.add.at(gradient, a, step[:, None] * along)
            np.subtract.at(gradient, b, step[:, None] * along)
        return gradient

    return Persistence(dimension[kept], birth[kept], death[kept], pull)


def _diagrams(ranks: Ranks, dimensions: Sequence[int], last: int) -> list[Floats]:
    """The diagrams of ranks up to the last one that counts."""
    full = ranks.astype(np.float64)

    def up_to(rank: float) -> list[Floats]:
        transform = gudhi("gudhi.sklearn").RipsPersistence(
            list(dimensions), threshold=rank, input_type="full distance matrix", homology_coeff_field=2
        )
        (diagrams,) = transform.fit_transform([full])
        return [np.asarray(diagram).reshape(-1, 2) for diagram in diagrams]

    # Where an edge joins a point with all others, the rest of the filtration is a cone.
    end = int(ranks.max(1).min())
    if max(dimensions) == 1 and end < last:
        # Most of the time goes into long edges, after the last loop died. No loop is born after `last_birth`: if none
        # is alive at a later edge, that is the end. It takes 2 to 8 ms for 500 points, and saves a third to a half.
        # A third of the edges is more than most clouds need.
        stop = max(last_birth(ranks), len(ranks) ** 2 // 6)
        while stop < end:
            diagrams = up_to(float(stop))
            if np.isfinite(diagrams[-1]).all():
                return diagrams
            stop = stop * 3 // 2
    return up_to(float(last))


def _ends(edges: Indices, count: int) -> tuple[Indices, Indices]:
    """Both points of edges that are numbered as in a condensed matrix of distances, row after row."""
    starts = np.concatenate([[0], np.cumsum(np.arange(count - 1, 0, -1))])
    first = np.searchsorted(starts, edges, side="right") - 1
    return first, edges - starts[first] + first + 1
