"""Log-probabilities of targets: whole numbers that say which class of the last axis is meant."""

import math
from typing import Any

from ..backends import Backend
from ..errors import OptionError, ShapeError
from .options import POSITIVE, check_fits, check_flag, check_number

__all__ = ["check_classes", "picked"]


def check_classes(function: str, x: Any) -> None:
    """Raise `ShapeError` unless the last axis has classes."""
    if len(x.shape) == 0 or x.shape[-1] == 0:
        raise ShapeError(
            f"{function}: p has shape {tuple(x.shape)}; expected a last axis with the log-probabilities of the classes"
        )


def picked(
    function: str,
    ops: Backend,
    x: Any,
    targets: Any,
    *,
    logits: bool,
    temperature: float,
    counted: Any = None,
    also: str = "",
) -> Any:
    """The log-probability of each target, `(…, K)`, in floats of at least 32 bits; 0 in rows that are not counted.

    A target that is not a class raises where values can be looked at. Elsewhere it is NaN, with its gradient: an index
    that was clamped, or that wrapped around, would train another class. `also` says what else a target may be.
    """
    check_flag(function, "logits", logits)
    temperature = check_number(function, "temperature", temperature, "a finite number above 0", low=POSITIVE)
    if temperature != 1:
        check_fits(function, "temperature", temperature, ops, ops.upcast(function, x[..., :1]), divisor=True)
    classes = x.shape[-1]
    outside = (targets < 0) | (targets >= classes)
    wrong = outside if counted is None else outside & counted[..., None]
    at_hand = ops.at_hand(targets)
    if at_hand and bool(wrong.any()):
        given = ops.read([targets[wrong][0]])[0]
        raise OptionError(function, "targets", given, f"the index of a class, from 0 to {classes - 1}{also}")
    inside = ops.where(outside, 0, targets)
    if logits or temperature != 1:
        found = ops.log_softmax_at(x, inside, counted, temperature)
    else:
        found = ops.upcast(function, ops.take_along(x, inside))
        found = found if counted is None else ops.where(counted[..., None], found, 0.0)
    return found if at_hand else found * ops.cast(ops.where(wrong, math.nan, 1.0), found)
