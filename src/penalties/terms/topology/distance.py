"""The Wasserstein distance between two diagrams, with its slopes in all births and deaths."""

import math
from typing import NamedTuple

import numpy as np

from .persistence import Floats, Indices, scipy

__all__ = ["Distance", "Unequal", "distance"]


class Distance(NamedTuple):
    """A distance, and its slopes in both diagrams."""

    value: float
    first: Floats
    second: Floats


class Unequal(Exception):
    """One diagram has more features that never die than the other: the distance is infinite."""

    def __init__(self, first: int, second: int) -> None:
        """Keep how many there are in both."""
        self.first: int = first
        self.second: int = second
        super().__init__(f"{first} and {second} features never die")


def distance(a: Floats, b: Floats, *, order: float, internal_p: float, essential: bool) -> Distance:
    """That of diagrams `(n, 2)` and `(m, 2)`. Where a part of it is 0, so are its slopes.

    - `essential`: whether features that never die count; there have to be as many in both.
    """
    slopes, others = np.zeros_like(a), np.zeros_like(b)
    finite, finite_others = np.flatnonzero(np.isfinite(a[:, 1])), np.flatnonzero(np.isfinite(b[:, 1]))
    rows, columns = _matched(a[finite], b[finite_others], order, internal_p)
    rows, columns = finite[rows], finite_others[columns]
    dropped, missed = np.setdiff1d(finite, rows), np.setdiff1d(finite_others, columns)
    first, second = _matched_births(a, b) if essential else (rows[:0], columns[:0])

    apart = a[rows] - b[columns]
    shifts = a[first, 0] - b[second, 0]
    costs = [_norm(apart, internal_p), _to_diagonal(a[dropped], internal_p), _to_diagonal(b[missed], internal_p)]
    every = np.concatenate([*costs, np.abs(shifts)])
    largest = every.max(initial=0.0)
    if not largest:
        return Distance(0.0, slopes, others)
    value = float(largest * ((every / largest) ** order).sum() ** (1 / order))
    share = np.where(every > 0, (every / value) ** (order - 1), 0.0)
    pair, drop, miss, shift = np.split(share, np.cumsum([len(cost) for cost in costs]))

    aside = _aside(internal_p) * np.array([-1.0, 1.0])
    along = pair[:, None] * _direction(apart, costs[0], internal_p)
    slopes[rows], others[columns] = along, -along
    slopes[dropped], others[missed] = drop[:, None] * aside, miss[:, None] * aside
    slopes[first, 0], others[second, 0] = shift * np.sign(shifts), -shift * np.sign(shifts)
    return Distance(value, slopes, others)


def _matched(a: Floats, b: Floats, order: float, internal_p: float) -> tuple[Indices, Indices]:
    """The rows of finite diagrams that are matched with one another; all others are matched with the diagonal.

    Two features are matched only where that costs less than taking both to the diagonal, so the assignment is one of
    n × m gains, not of n + m features.
    """
    apart = _norm(a[:, None] - b[None, :], internal_p) ** order
    alone = _to_diagonal(a, internal_p)[:, None] ** order + _to_diagonal(b, internal_p)[None, :] ** order
    gains = np.minimum(apart - alone, 0.0)
    rows, columns = scipy("optimize").linear_sum_assignment(gains)
    pays = gains[rows, columns] < 0
    return rows[pays], columns[pays]


def _matched_births(a: Floats, b: Floats) -> tuple[Indices, Indices]:
    """The rows of features that never die, by the order of their births."""
    first, second = np.flatnonzero(np.isinf(a[:, 1])), np.flatnonzero(np.isinf(b[:, 1]))
    if len(first) != len(second):
        raise Unequal(len(first), len(second))
    return first[np.argsort(a[first, 0])], second[np.argsort(b[second, 0])]


def _to_diagonal(diagram: Floats, internal_p: float) -> Floats:
    """The distance of each feature to the nearest one that does not live."""
    return (diagram[:, 1] - diagram[:, 0]) * _aside(internal_p)


def _aside(internal_p: float) -> float:
    return 2.0 ** (1 / internal_p - 1)


def _norm(differences: Floats, internal_p: float) -> Floats:
    sizes = np.abs(differences)
    largest = sizes.max(-1)
    if math.isinf(internal_p):
        return largest
    # Divided by the largest first: a power of a small number may be 0.
    safe = np.where(largest > 0, largest, 1.0)
    return largest * ((sizes / safe[..., None]) ** internal_p).sum(-1) ** (1 / internal_p)


def _direction(differences: Floats, lengths: Floats, internal_p: float) -> Floats:
    """The slopes of lengths in both coordinates, 0 at length 0; for an infinite p, shared evenly between equal ones."""
    sizes, signs = np.abs(differences), np.sign(differences)
    if math.isinf(internal_p):
        largest = sizes == lengths[:, None]
        return signs * largest / largest.sum(1, keepdims=True)
    safe = np.where(lengths > 0, lengths, 1.0)[:, None]
    return signs * (sizes / safe) ** (internal_p - 1)
