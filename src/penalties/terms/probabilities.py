"""Probabilities of yes or no, from log-odds or as they are."""

import math
from typing import Any, Final

from ..backends import Backend
from ..errors import OptionError

__all__ = ["LARGEST", "log_sigmoids", "probability_of"]

LARGEST: Final = 1e30
"""Instead of infinity, for sums and differences that stay finite."""

_ROUNDING: Final = 1e-4
"""How far outside of 0 to 1 a probability may be: the sum of a few of a softmax is not always at most 1."""


def probability_of(function: str, ops: Backend, x: Any, *, logits: bool) -> Any:
    """Probabilities. A number that is not one raises where values can be read, and is NaN elsewhere."""
    if logits:
        return ops.exp(log_sigmoids(ops, x)[..., 0])
    fixed = ops.stop_gradient(x)
    beyond = fixed - ops.clip(fixed, 0.0, 1.0)
    outside = (beyond < -_ROUNDING) | (beyond > _ROUNDING)
    if not ops.at_hand(x):
        return (x - beyond) * ops.cast(ops.where(outside, math.nan, 1.0), x)
    if bool(outside.any()):
        raise OptionError(function, "p", ops.read([x[outside][0]])[0], "probabilities, from 0 to 1, or logits=True")
    return x - beyond


def log_sigmoids(ops: Backend, x: Any) -> Any:
    """`log σ(x)` and `log σ(−x)`, in a further axis; with their digits, and finite."""
    return ops.log_softmax(ops.clip(x, -LARGEST, LARGEST)[..., None] * (0.5 - ops.arange(2, x)))
