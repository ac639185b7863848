"""Penalties on the size of values: L1, L2, elastic net, smooth L1."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

from ..arrays import ArrayT, ArrayTree, Reduction
from ..backends import Backend, owner
from . import examples
from .nests import gather
from .options import POSITIVE, check_choice, check_number
from .penalty import Elementwise, penalty
from .reduction import REDUCTIONS, reduce

__all__ = ["elastic_net", "l1", "l2", "smooth_l1"]


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

    >>> import numpy as np
    >>> float(l1(np.array([1.0, -2.0, 3.0])))
    6.0
    """
    ops = owner(x)
    if ops is None or reduction not in REDUCTIONS:
        return _nested("l1", x, reduction, _abs)
    return reduce(ops, ops.abs(ops.upcast("l1", x)), reduction)


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

    The order is center, clip, square, reduce: `center` subtracts the mean of all elements or a number, `clip=c` clamps
    to `[−c, c]`. The gradient is `2(x − center)`, and 0 beyond the clip.

    >>> import numpy as np
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> float(l2(x)), float(l2(x, center="mean")), float(l2(x, clip=2.0))
    (14.0, 2.0, 9.0)
    """
    if center is not None and not (isinstance(center, str) and center == "mean"):
        center = check_number("l2", "center", center, 'None, "mean" or a finite number')
    if clip is not None:
        clip = check_number("l2", "clip", clip, "None or a finite number above 0", low=POSITIVE)
    ops = owner(x)
    if ops is None or reduction not in REDUCTIONS:
        return _nested("l2", x, reduction, partial(_square, clip=clip), center)
    array = ops.upcast("l2", x)
    if center is not None:
        array = array - (ops.mean(array) if center == "mean" else center)
    return _square(ops, array, reduction, clip)


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

    `l1_ratio=1` is `l1`, `l1_ratio=0` is `l2`. The gradient is `α·sign(x) + 2(1 − α)·x`, and 0 at 0.

    >>> import numpy as np
    >>> float(elastic_net(np.array([1.0, -2.0, 3.0])))
    10.0
    """
    ratio = check_number("elastic_net", "l1_ratio", l1_ratio, "a number from 0 to 1", low=0, high=1)
    mixed = partial(_mixed, ratio=ratio)
    ops = owner(x)
    if ops is None or reduction not in REDUCTIONS:
        return _nested("elastic_net", x, reduction, mixed)
    return mixed(ops, ops.upcast("elastic_net", x), reduction)


@overload
def smooth_l1(x: ArrayT, *, delta: float = ..., reduction: Reduction = ...) -> ArrayT: ...
@overload
def smooth_l1(x: ArrayTree, *, delta: float = ..., reduction: Reduction = ...) -> Any: ...
@penalty(
    rows=True,
    example=examples.matrix,
    # Beyond these bounds 1/δ overflows in float32.
    elementwise=lambda options: Elementwise(1.0, 0.0, options["delta"]) if 1e-30 < options["delta"] < 1e30 else None,
    config='weight = 1e-4\ninputs = "params"\noptions = { delta = 0.1 }',
)
def smooth_l1(x: ArrayTree, *, delta: float = 1.0, reduction: Reduction = "sum") -> Any:
    """L1 with a round bottom: `x²/2δ` where `|x| < δ`, else `|x| − δ/2`.

    The gradient is `x/δ` inside and `sign(x)` outside: as `l1` far from zero, without its kink.

    >>> import numpy as np
    >>> float(smooth_l1(np.array([0.5, -2.0])))
    1.625
    """
    delta = check_number("smooth_l1", "delta", delta, "a finite number above 0", low=POSITIVE)
    ops = owner(x)
    if ops is None or reduction not in REDUCTIONS:
        return _nested("smooth_l1", x, reduction, partial(_smooth, delta=delta))
    return ops.smooth_abs(ops.upcast("smooth_l1", x), delta, reduction)


# The functions above take a single array by the shortest way: at ten thousand elements a norm is 40 µs of work, and
# every call on the way to it costs a good part of one. Nests take the general way, through `_nested`, which also
# refuses a wrong reduction.


def _nested(
    function: str, x: Any, reduction: str, value: Callable[[Backend, Any, str], Any], center: Any = None
) -> Any:
    """`value(ops, array, reduction)` over all leaves of a nest, less their common mean or a number."""
    check_choice(function, "reduction", reduction, REDUCTIONS)
    leaves = gather(function, keep=reduction == "none", x=x)
    if center is not None:
        ops = leaves.ops
        if center == "mean":
            middle = leaves.reduce(partial(reduce, ops), "mean")
            leaves = leaves._replace(rows=[[array - ops.cast(middle, array)] for (array,) in leaves.rows])
        else:
            leaves = leaves._replace(rows=[[array - center] for (array,) in leaves.rows])
    return leaves.reduce(partial(value, leaves.ops), reduction)


def _abs(ops: Backend, array: Any, reduction: str) -> Any:
    return reduce(ops, ops.abs(array), reduction)


def _square(ops: Backend, array: Any, reduction: str, clip: float | None = None) -> Any:
    return reduce(ops, ops.square(array if clip is None else ops.clip(array, -clip, clip)), reduction)


def _mixed(ops: Backend, array: Any, reduction: str, ratio: float) -> Any:
    if ratio == 1.0:
        return _abs(ops, array, reduction)
    if ratio == 0.0:
        return _square(ops, array, reduction)
    # Reduced apart: fewer passes over the elements than one mixed expression.
    parts = [_abs(ops, array, reduction), _square(ops, array, reduction)]
    if reduction == "none":
        return ratio * parts[0] + (1 - ratio) * parts[1]
    return ops.weighted_sum(parts, [ratio, 1 - ratio])


def _smooth(ops: Backend, array: Any, reduction: str, delta: float) -> Any:
    return ops.smooth_abs(array, delta, reduction)
