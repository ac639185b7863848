"""Penalties on the size of values: L1, L2, elastic net, smooth L1."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias, overload

from ..arrays import ArrayT, ArrayTree, Reduction
from ..backends import Backend
from ..errors import OptionError
from . import examples
from .nests import gather
from .options import POSITIVE, check_choice, check_fits, check_number
from .penalty import Elementwise, penalty
from .reduction import REDUCTIONS, reduce

__all__ = ["elastic_net", "l1", "l2", "smooth_l1"]

Value: TypeAlias = Callable[[Backend, Any, str], Any]
"""A norm of one array: `value(ops, array, reduction)`."""


@overload
def l1(x: ArrayT, *, reduction: Reduction = ...) -> ArrayT: ...
@overload
def l1(x: ArrayTree, *, reduction: Reduction = ...) -> Any: ...
@penalty(
    rows=True,
    example=examples.matrix,
    elementwise=lambda options: Elementwise(1.0, 0.0),
    config='weight = 1e-4\ninputs = "params"',
)
def l1(x: ArrayTree, *, reduction: Reduction = "sum") -> Any:
    """Sum of absolute values, `Σ|x|`: pulls small values to zero.

    The gradient is `sign(x)`, and 0 at 0 in every backend.

    - `x`: an array, or a nest of arrays such as `model.parameters()`.
    - `reduction`: "sum" or "mean" over all elements, or "none" for a value per element, in the structure of `x`.

    >>> import numpy as np
    >>> float(l1(np.array([1.0, -2.0, 3.0])))
    6.0
    """
    return _norm("l1", x, reduction, _abs)


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
@penalty(
    rows=True,
    coupled={"center": "mean"},
    example=examples.matrix,
    elementwise=lambda options: Elementwise(0.0, 2.0) if options["center"] is options["clip"] is None else None,
    config='weight = 1e-4\ninputs = "params"',
)
def l2(
    x: ArrayTree,
    *,
    reduction: Reduction = "sum",
    center: Literal["mean"] | float | None = None,
    clip: float | None = None,
) -> Any:
    """Sum of squares, `Σx²` (no ½): shrinks large values most.

    The order is center, clip, square, reduce. The gradient is `2(x − center)`, and 0 beyond the clip.

    - `x`: an array, or a nest of arrays such as `model.parameters()`.
    - `reduction`: "sum" or "mean" over all elements, or "none" for a value per element, in the structure of `x`.
    - `center`: what to subtract first: a number, or "mean" for the mean of all elements. None subtracts nothing.
    - `clip`: clamp to `[−clip, clip]` before squaring. None does not clamp.

    >>> import numpy as np
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> float(l2(x)), float(l2(x, center="mean")), float(l2(x, clip=2.0))
    (14.0, 2.0, 9.0)
    """
    if center is not None and not (isinstance(center, str) and center == "mean"):
        center = check_number("l2", "center", center, 'None, "mean" or a finite number')
    if clip is not None:
        clip = check_number("l2", "clip", clip, "None or a finite number above 0", low=POSITIVE)
    return _norm("l2", x, reduction, partial(_square, clip=clip), center)


@overload
def elastic_net(x: ArrayT, *, l1_ratio: float = ..., reduction: Reduction = ...) -> ArrayT: ...
@overload
def elastic_net(x: ArrayTree, *, l1_ratio: float = ..., reduction: Reduction = ...) -> Any: ...
@penalty(
    rows=True,
    example=examples.matrix,
    elementwise=lambda options: Elementwise(float(options["l1_ratio"]), 2 * (1 - float(options["l1_ratio"]))),
    config='weight = 1e-4\ninputs = "params"\noptions = { l1_ratio = 0.9 }',
)
def elastic_net(x: ArrayTree, *, l1_ratio: float = 0.5, reduction: Reduction = "sum") -> Any:
    """`α·Σ|x| + (1 − α)·Σx²` with `α = l1_ratio`: sparsity and shrinkage in one knob (Zou and Hastie, 2005).

    The gradient is `α·sign(x) + 2(1 − α)·x`, and 0 at 0.

    - `x`: an array, or a nest of arrays such as `model.parameters()`.
    - `l1_ratio`: from 0, which is `l2`, to 1, which is `l1`.
    - `reduction`: "sum" or "mean" over all elements, or "none" for a value per element, in the structure of `x`.

    >>> import numpy as np
    >>> float(elastic_net(np.array([1.0, -2.0, 3.0])))
    10.0
    """
    ratio = check_number("elastic_net", "l1_ratio", l1_ratio, "a number from 0 to 1", low=0, high=1)
    return _norm("elastic_net", x, reduction, partial(_mixed, ratio=ratio))


@overload
def smooth_l1(x: ArrayT, *, delta: float = ..., reduction: Reduction = ...) -> ArrayT: ...
@overload
def smooth_l1(x: ArrayTree, *, delta: float = ..., reduction: Reduction = ...) -> Any: ...
@penalty(
    rows=True,
    example=examples.matrix,
    # In float32 1/δ overflows below these bounds, and beyond them (x/δ)² is 0 where its other half, x²/δ, is not.
    elementwise=lambda options: Elementwise(1.0, 0.0, options["delta"]) if 1e-30 < options["delta"] < 1e4 else None,
    config='weight = 1e-4\ninputs = "params"\noptions = { delta = 0.1 }',
)
def smooth_l1(x: ArrayTree, *, delta: float = 1.0, reduction: Reduction = "sum") -> Any:
    """L1 with a round bottom: `x²/2δ` where `|x| < δ`, else `|x| − δ/2`.

    The gradient is `x/δ` inside and `sign(x)` outside: as `l1` far from zero, without its kink.

    - `x`: an array, or a nest of arrays such as `model.parameters()`.
    - `delta`: where the parabola meets the straight lines, above 0.
    - `reduction`: "sum" or "mean" over all elements, or "none" for a value per element, in the structure of `x`.

    >>> import numpy as np
    >>> float(smooth_l1(np.array([0.5, -2.0])))
    1.625
    """
    delta = check_number("smooth_l1", "delta", delta, "a finite number above 0", low=POSITIVE)
    return _norm("smooth_l1", x, reduction, partial(_smooth, delta=delta))


def _norm(function: str, x: Any, reduction: str, value: Value, center: Any = None) -> Any:
    """A norm of all leaves of a nest, less their common mean or a number."""
    check_choice(function, "reduction", reduction, REDUCTIONS)
    leaves = gather(function, keep=reduction == "none", x=x)
    ops = leaves.ops
    if center is not None:
        if center != "mean":
            check_fits(function, "center", center, ops, leaves.rows[0][0])
        middle = leaves.reduce(partial(reduce, ops), "mean") if center == "mean" else None
        leaves = leaves._replace(
            rows=[[array - (center if middle is None else ops.cast(middle, array))] for (array,) in leaves.rows]
        )
    return leaves.reduce(partial(value, ops), reduction)


def _abs(ops: Backend, array: Any, reduction: str) -> Any:
    return reduce(ops, ops.abs(array), reduction)


def _square(ops: Backend, array: Any, reduction: str, clip: float | None = None) -> Any:
    if clip is not None:
        check_fits("l2", "clip", clip, ops, array)
    return reduce(ops, ops.square(array if clip is None else ops.clip(array, -clip, clip)), reduction)


def _mixed(ops: Backend, array: Any, reduction: str, ratio: float) -> Any:
    if ratio == 1.0:
        return _abs(ops, array, reduction)
    # Below this the dtype may take it for 0, and 0 times a sum that is out of range is NaN.
    if ratio < ops.limits(array)[0]:
        return _square(ops, array, reduction)
    # Reduced apart: fewer passes over the elements than one mixed expression.
    return ratio * _abs(ops, array, reduction) + (1 - ratio) * _square(ops, array, reduction)


def _smooth(ops: Backend, array: Any, reduction: str, delta: float) -> Any:
    tiny, _ = ops.limits(array)
    # In the gradient of a mean delta is divided by the number of elements, and must keep its digits then.
    low, high = tiny * 2**24, 1 / tiny
    if not low <= delta <= high:
        raise OptionError("smooth_l1", "delta", delta, f"a number from {low:.3g} to {high:.3g} for {array.dtype}")
    return ops.smooth_abs(array, delta, reduction)
