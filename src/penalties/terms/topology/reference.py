"""The Wasserstein distance to a reference diagram, as a term."""

import dataclasses
import math
from typing import Any

import numpy as np

from ...backends import owner
from ...errors import NonFiniteError, OptionError, ShapeError
from ...functional.options import check_flag, check_number
from ...pipeline.evaluation import Evaluation
from .distance import Unequal, distance
from .filtrations import Filtering, Filtration, Score, longer, numbers, one_dimension
from .persistence import Floats, Persistence

__all__ = ["wasserstein"]

_NAME = "wasserstein"


def wasserstein(
    x: Any,
    reference: Any,
    *,
    filtration: Filtration = "rips",
    dimension: int = 1,
    order: float = 2.0,
    internal_p: float = 2.0,
    essential: bool = True,
    visible: float = 0.0,
    max_edge_length: float | None = None,
    batched: bool = False,
) -> Evaluation:
    """The Wasserstein distance of the diagram of `x` to a reference diagram, `min (Σ ‖a − b‖ᵠ)^(1/q)`.

    The minimum is over all ways to match each feature with one of the other diagram, or with the nearest one that does
    not live, `(m, m)` with `m = (birth + death)/2`; ‖·‖ is the norm of `internal_p` in the plane of births and deaths,
    and q is `order`. SciPy's `linear_sum_assignment` finds it. Where a distance is 0, so is its gradient.

    - `x`: points `(n, d)`, or the cells of an array of any shape.
    - `reference`: a diagram `(k, 2)`, as `diagram` makes it. It has a gradient too, if it is an array of the same
      library as `x`.
    - `filtration`, `max_edge_length`, `batched`: as in `total_persistence`. All of a batch have the same reference.
    - `dimension`: of features.
    - `order`: q, at least 1.
    - `internal_p`: p, at least 1, or infinity.
    - `essential`: whether features that never die are matched by their births, in order. There have to be as many of
      them in both diagrams: any other number is an error, since the distance would be infinite. False ignores them.
    - `visible`: what a feature has to outlive to count in the metric `betti_k`.

    >>> import numpy as np
    >>> from penalties.terms import topology
    >>> angles = 2 * np.pi * np.arange(12) / 12
    >>> circle = np.stack([np.cos(angles), np.sin(angles)], -1)
    >>> reference = topology.diagram(circle)
    >>> evaluation = topology.wasserstein(2 * circle, reference)
    >>> round(evaluation.value, 6), round(float(np.hypot(*reference[0])), 6)
    (1.807747, 1.807747)
    """
    filtering = Filtering(_NAME, filtration, one_dimension(_NAME, dimension), max_edge_length, batched)
    q = check_number(_NAME, "order", order, "a finite number of at least 1", 1.0)
    p = internal_p
    if p != math.inf:
        p = check_number(_NAME, "internal_p", p, "a number of at least 1, or infinity", 1.0)
    check_flag(_NAME, "essential", essential)
    shown = longer(_NAME, "visible", visible)
    target = _checked(filtering, reference)
    pulled = np.zeros_like(target)

    def score(found: Persistence) -> Score:
        own = np.stack([found.birth, found.death], -1)
        try:
            value, slopes, others = distance(own, target, order=q, internal_p=p, essential=essential)
        except Unequal as error:
            expected = (
                f"as many features that never die in both diagrams: x has {error.first} and reference has "
                f"{error.second}; essential=False ignores them"
            )
            raise OptionError(_NAME, "essential", essential, expected) from None
        np.add(pulled, others, out=pulled)
        return Score(value, slopes[:, 0], slopes[:, 1])

    evaluation = filtering.evaluation(x, score, visible=shown)
    if owner(reference) is not owner(x):
        return evaluation
    count = max(x.shape[0], 1) if batched else 1
    both = {**(evaluation.gradient or {}), "reference": filtering.sign * pulled / count}
    return dataclasses.replace(evaluation, gradient=both)


def _checked(filtering: Filtering, reference: Any) -> Floats:
    """The reference as NumPy's numbers, with deaths last."""
    target = filtering.sign * numbers(_NAME, "reference", reference)
    if target.ndim != 2 or target.shape[1] != 2:
        raise ShapeError(f"{_NAME}: reference has shape {target.shape}; expected (features, 2), births and deaths")
    nan = bool(np.isnan(target).any())
    if nan or np.isinf(target[:, 0]).any():
        what = "NaN" if nan else "a birth at infinity"
        message = f"{_NAME}: reference contains {what}; expected births that are finite numbers, and deaths"
        raise NonFiniteError("nan" if nan else "inf", message)
    if (target[:, 1] < target[:, 0]).any():
        side = "above" if filtering.sign > 0 else "below"
        expected = f"a reference whose deaths are {side} their births"
        raise OptionError(_NAME, "filtration", filtering.filtration, expected)
    return target
