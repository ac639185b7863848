"""Penalties on the size of values: L1, L2, elastic net, smooth L1."""

from typing import Any, Literal, overload

from ..arrays import ArrayT, ArrayTree, Reduction
from .nests import Leaves, gather
from .options import check_choice, check_number, penalty
from .reduction import REDUCTIONS

__all__ = ["elastic_net", "l1", "l2", "smooth_l1"]


@overload
def l1(x: ArrayT, *, reduction: Reduction = ...) -> ArrayT: ...
@overload
def l1(x: ArrayTree, *, reduction: Reduction = ...) -> Any: ...
@penalty
def l1(x: Any, *, reduction: Reduction = "sum") -> Any:
    """Sum of absolute values, `Σ|x|`: pulls small values to zero.

    The gradient is `sign(x)`, and 0 at 0 in every backend.

    >>> import numpy as np
    >>> float(l1(np.array([1.0, -2.0, 3.0])))
    6.0
    """
    leaves = _leaves("l1", x, reduction)
    return leaves.reduce(leaves.ops.abs, reduction)


@overload
def l2(
    x: ArrayT,
    *,
    reduction: Reduction = ...,
    center: Literal["mean"] | float | None = ...,
    clip: float | None = ...,
) -> ArrayT: ...
@overload
def l2(
    x: ArrayTree,
    *,
    reduction: Reduction = ...,
    center: Literal["mean"] | float | None = ...,
    clip: float | None = ...,
) -> Any: ...
@penalty
def l2(
    x: Any,
    *,
    reduction: Reduction = "sum",
    center: Literal["mean"] | float | None = None,
    clip: float | None = None,
) -> Any:
    """Sum of squares, `Σx²` (no ½): shrinks large values most.

    The order is center, clip, square, reduce: `center` subtracts the mean of all elements or a number, `clip=c` clamps
    to `[−c, c]`. The gradient is `2(x − center)`, and 0 beyond the clip.

    >>> import numpy as np
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> float(l2(x)), float(l2(x, center="mean")), float(l2(x, clip=2.0))
    (14.0, 2.0, 9.0)
    """
    leaves = _leaves("l2", x, reduction)
    if center is not None:
        leaves = _centered(leaves, center)
    ops = leaves.ops
    if clip is None:
        return leaves.reduce(ops.square, reduction)
    check_number("l2", "clip", clip, "None or a finite number above 0", above=0)
    bound = float(clip)

    def clipped(array: Any) -> Any:
        return ops.square(ops.clip(array, -bound, bound))

    return leaves.reduce(clipped, reduction)


@overload
def elastic_net(x: ArrayT, *, l1_ratio: float = ..., reduction: Reduction = ...) -> ArrayT: ...
@overload
def elastic_net(x: ArrayTree, *, l1_ratio: float = ..., reduction: Reduction = ...) -> Any: ...
@penalty
def elastic_net(x: Any, *, l1_ratio: float = 0.5, reduction: Reduction = "sum") -> Any:
    """`α·Σ|x| + (1 − α)·Σx²` with `α = l1_ratio`: sparsity and shrinkage in one knob (Zou and Hastie, 2005).

    `l1_ratio=1` is `l1`, `l1_ratio=0` is `l2`. The gradient is `α·sign(x) + 2(1 − α)·x`, and 0 at 0.

    >>> import numpy as np
    >>> float(elastic_net(np.array([1.0, -2.0, 3.0])))
    10.0
    """
    leaves = _leaves("elastic_net", x, reduction)
    check_number("elastic_net", "l1_ratio", l1_ratio, "a number from 0 to 1", low=0, high=1)
    ops, a = leaves.ops, float(l1_ratio)
    if a == 1.0:
        return leaves.reduce(ops.abs, reduction)
    if a == 0.0:
        return leaves.reduce(ops.square, reduction)
    if reduction != "none":
        # Two reductions and one weighted sum of scalars: fewer passes over the elements than one mixed expression.
        return a * leaves.reduce(ops.abs, reduction) + (1 - a) * leaves.reduce(ops.square, reduction)

    def mixed(array: Any) -> Any:
        return a * ops.abs(array) + (1 - a) * ops.square(array)

    return leaves.map(mixed)


@overload
def smooth_l1(x: ArrayT, *, delta: float = ..., reduction: Reduction = ...) -> ArrayT: ...
@overload
def smooth_l1(x: ArrayTree, *, delta: float = ..., reduction: Reduction = ...) -> Any: ...
@penalty
def smooth_l1(x: Any, *, delta: float = 1.0, reduction: Reduction = "sum") -> Any:
    """L1 with a round bottom: `x²/2δ` where `|x| < δ`, else `|x| − δ/2`.

    The gradient is `x/δ` inside and `sign(x)` outside: as `l1` far from zero, without its kink.

    >>> import numpy as np
    >>> float(smooth_l1(np.array([0.5, -2.0])))
    1.625
    """
    leaves = _leaves("smooth_l1", x, reduction)
    check_number("smooth_l1", "delta", delta, "a finite number above 0", above=0)
    width = float(delta)

    def smooth(array: Any) -> Any:
        return leaves.ops.smooth_abs(array, width)

    return leaves.reduce(smooth, reduction)


def _leaves(function: str, x: Any, reduction: str) -> Leaves:
    check_choice(function, "reduction", reduction, REDUCTIONS)
    return gather(function, keep=reduction == "none", x=x)


def _centered(leaves: Leaves, center: Any) -> Leaves:
    if isinstance(center, str) and center == "mean":
        middle = leaves.mean(_itself)
    else:
        check_number("l2", "center", center, 'None, "mean" or a finite number')
        middle = float(center)
    return leaves._replace(rows=[[array - middle] for (array,) in leaves.rows])


def _itself(array: Any) -> Any:
    return array
