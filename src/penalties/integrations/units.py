"""Units: the slices of a tensor along one axis, such as the rows of a matrix."""

from collections.abc import Sequence
from typing import Any, cast

from ..backends import Backend, owner
from ..errors import OptionError, ShapeError
from ..functional.options import is_whole

__all__ = ["check_axis", "remaining", "within"]


def check_axis(function: str, axis: Any) -> None:
    """Raise `OptionError` unless this is a whole number."""
    if not is_whole(axis):
        raise OptionError(function, "axis", axis, "a whole number: the axis along which the units of a tensor lie")


def within(function: str, shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """The axes inside a unit: all but one."""
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(
            f"{function}: axis={axis}, but a parameter has shape {tuple(shape)}; choose the axis of its units, "
            "or leave it out"
        )
    return tuple(one for one in range(len(shape)) if one != axis % len(shape))


def remaining(length: Any, threshold: Any) -> Any:
    """The factor by which a vector of this length becomes shorter by the threshold, at most to 0."""
    ops = cast("Backend", owner(length))
    # A length of NaN is not at most the threshold: it stays NaN.
    return ops.where(length <= threshold, 0.0, 1 - threshold / length)
