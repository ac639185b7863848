"""Checks of what a caller passes: options, numbers, shapes."""

import math
import sys
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np

from ..backends import Backend
from ..errors import OptionError, ShapeError, did_you_mean

__all__ = [
    "POSITIVE",
    "check_choice",
    "check_count",
    "check_fits",
    "check_flag",
    "check_number",
    "check_same_shape",
    "is_whole",
    "unknown_option",
]

POSITIVE: Final = math.ulp(0.0)
"""The smallest number above 0, as a lower bound."""

_LARGEST: Final = sys.float_info.max
_NUMBERS: Final[tuple[type[Any], ...]] = (int, float, np.integer, np.floating)
_FLAGS: Final = (bool, np.bool_)
_STRENGTHS: Final = ("alpha", "coef", "coefficient", "lam", "lambda", "lambd", "strength", "weight")
"""Options by which other libraries scale a penalty."""
_WHOLE: Final[tuple[type[Any], ...]] = (int, np.integer)


def unknown_option(function: str, option: str, value: object, options: Sequence[str]) -> OptionError:
    """The error for an option that does not exist, with the nearest one that does."""
    known = "no option"
    if options:
        known = f"one of the options {', '.join(options)}" if len(options) > 1 else f"the option {options[0]}"
    hint = did_you_mean(option, options)
    if option.strip("_") in _STRENGTHS:
        hint = f": strength is a factor, {value} * {function}(…), or the weight of a term"
    return OptionError(function, option, value, known + hint)


def check_choice(function: str, option: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise `OptionError` unless the value is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        words = [f'"{word}"' for word in allowed]
        raise OptionError(function, option, value, " or ".join([", ".join(words[:-1]), words[-1]]))


def check_flag(function: str, option: str, value: object, expected: str = "True or False") -> None:
    """Raise `OptionError` unless the value is True or False."""
    if not isinstance(value, _FLAGS):
        raise OptionError(function, option, value, expected)


def check_number(
    function: str, option: str, value: Any, expected: str, low: float = -_LARGEST, high: float = _LARGEST
) -> float:
    """The value as a float; raises unless it is finite and from `low` to `high`, which `expected` says in words."""
    if type(value) is float and low <= value <= high:
        return value
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        try:
            number = float(cast("float", value))
        except OverflowError:
            number = math.inf
        if low <= number <= high:
            return number
    raise OptionError(function, option, cast("object", value), expected)


def check_fits(function: str, option: str, value: float, ops: Backend, x: Any, *, divisor: bool = False) -> None:
    """Raise `OptionError` unless the dtype of an array can hold the value of an option, a divisor as more than 0."""
    tiny, largest = ops.limits(x)
    if abs(value) > largest or (divisor and value < tiny):
        raise OptionError(function, option, value, f"a number that {x.dtype} can hold")


def is_whole(value: Any) -> bool:
    """Whether this is a whole number; True and False are not."""
    return isinstance(value, _WHOLE) and not isinstance(value, bool)


def check_count(function: str, option: str, value: Any, least: int) -> None:
    """Raise `OptionError` unless the value is a whole number of at least `least`."""
    if not is_whole(value) or value < least:
        raise OptionError(function, option, cast("object", value), f"a whole number of at least {least}")


def check_same_shape(function: str, **arrays: Any) -> None:
    """Raise `ShapeError` unless two named arrays have one shape."""
    (first, a), (second, b) = arrays.items()
    if a.shape != b.shape:
        raise ShapeError(
            f"{function}: {first} has shape {tuple(a.shape)} and {second} has shape {tuple(b.shape)}; "
            "expected equal shapes (nothing is broadcast)"
        )
