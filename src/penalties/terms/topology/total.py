"""Total persistence: how much features live, all together."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...functional.options import check_number
from ...pipeline.evaluation import Evaluation
from .filtrations import Filtering, Filtration, Score, chosen, longer
from .persistence import Persistence

__all__ = ["total_persistence"]

_NAME = "total_persistence"


def total_persistence(
    x: Any,
    *,
    filtration: Filtration = "rips",
    dimensions: int | Sequence[int] = (0, 1),
    power: float = 1.0,
    longer_than: float = 0.0,
    visible: float = 0.0,
    max_edge_length: float | None = None,
    batched: bool = False,
) -> Evaluation:
    """How much features live, all together: `Σ lifeᵖ`, with `life = |death − birth|`. Small values: a simple shape.

    Features that never die have no life and do not count. A feature of life 0 has gradient 0.

    - `x`: points `(n, d)`, or the cells of an array of any shape.
    - `filtration`: what grows while features live: the length of edges between points, "rips"; the radius of balls
      around them, "alpha"; the set of cells up to a level that rises, "sublevel", or from one that falls, "superlevel".
    - `dimensions`: of features, one or several: 0 for pieces, 1 for loops, 2 for voids.
    - `power`: the exponent p, at least 1.
    - `longer_than`: features that live no longer than this do not count.
    - `visible`: what a feature has to outlive to count in the metric `betti_k`.
    - `max_edge_length`: where "rips" stops; a feature that is alive there never dies.
    - `batched`: whether the first axis of `x` is a batch; the value is the mean over it.

    A square of side 1 in the plane: three edges join its corners, and its loop dies with the diagonals.

    >>> import numpy as np
    >>> from penalties.terms import topology
    >>> square = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> evaluation = topology.total_persistence(square)
    >>> round(evaluation.value, 6)
    3.414214
    >>> {name: round(number, 3) for name, number in evaluation.metrics.items() if name.endswith("1")}
    {'betti_1': 1, 'features_1': 1, 'longest_1': 0.414, 'total_1': 0.414}
    """
    filtering = Filtering(_NAME, filtration, chosen(_NAME, dimensions), max_edge_length, batched)
    p = check_number(_NAME, "power", power, "a finite number of at least 1", 1.0)
    least = longer(_NAME, "longer_than", longer_than)

    def score(found: Persistence) -> Score:
        counts = np.isfinite(found.life) & (found.life > least)
        life = np.where(counts, found.life, 0.0)
        slopes = np.where(counts, p * life ** (p - 1), 0.0)
        return Score(float((life**p).sum()), -slopes, slopes)

    return filtering.evaluation(x, score, visible=longer(_NAME, "visible", visible))
