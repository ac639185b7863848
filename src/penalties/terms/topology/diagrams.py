"""Births and deaths as an array."""

from typing import Any

import numpy as np

from ...backends import backend_of
from .filtrations import Filtering, Filtration, one_dimension

__all__ = ["diagram"]


def diagram(
    x: Any, *, filtration: Filtration = "rips", dimension: int = 1, max_edge_length: float | None = None
) -> Any:
    """Births and deaths of the features of one dimension, `(k, 2)`, as a constant array of the library of `x`.

    A feature that never dies has an infinite death. With "superlevel" births are above deaths, and that is −infinity.

    - `x`: points `(n, d)`, or the cells of an array of any shape.
    - `filtration`, `max_edge_length`: as in `total_persistence`.
    - `dimension`: of features.

    >>> import numpy as np
    >>> from penalties.terms import topology
    >>> topology.diagram(np.array([0.0, 3.0, 1.0, 2.0]), filtration="sublevel", dimension=0)
    array([[ 0., inf],
           [ 1.,  3.]])
    """
    filtering = Filtering("diagram", filtration, one_dimension("diagram", dimension), max_edge_length)
    (member,) = filtering.members(x)
    found = filtering.persistence(member)
    both = filtering.sign * np.stack([found.birth, found.death], -1)
    ops = backend_of("diagram", x=x)
    return ops.constant(both, ops.upcast("diagram", x))
