"""Length and direction of vectors, with gradient 0 at the zero vector and no overflow on the way.

Both divide by the largest element first, held constant. That changes nothing mathematically, whatever the constant is,
so derivatives of every order stay right; and squares neither overflow nor vanish. No floor constants: a vector is zero
or it is not.
"""

import math
from typing import Any

from ..backends import Backend

__all__ = ["norm", "unit"]


def norm(ops: Backend, x: Any) -> Any:
    """`‖x‖₂` of every vector of the last axis."""
    if math.prod(x.shape) == 0:
        return ops.sum(x, -1)
    scaled, scale = _scaled(ops, x)
    return (_length(ops, scaled) * scale)[..., 0]


def unit(ops: Backend, x: Any) -> tuple[Any, Any]:
    """Vectors of the last axis divided by their lengths, and which of them are zero and stay so."""
    if math.prod(x.shape) == 0:
        return x, ops.sum(x, -1) == 0
    scaled, _ = _scaled(ops, x)
    length = _length(ops, scaled)
    zero = length == 0
    return ops.where(zero, 0.0, scaled / ops.where(zero, 1.0, length)), zero[..., 0]


def _scaled(ops: Backend, x: Any) -> tuple[Any, Any]:
    largest = ops.amax(ops.abs(ops.stop_gradient(x)), -1, keepdims=True)
    # Up to here 1/scale, by which XLA multiplies, is a normal number.
    bound = 1 / ops.limits(x)[0]
    scale = ops.where((largest > 0) & (largest < math.inf), ops.clip(largest, None, bound), 1.0)
    return x / scale, scale


def _length(ops: Backend, x: Any) -> Any:
    squares = ops.sum(ops.square(x), -1, keepdims=True)
    zero = squares == 0
    return ops.where(zero, 0.0, ops.sqrt(ops.where(zero, 1.0, squares)))
