"""What a value is, in a way that type checkers follow from `Any`."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

__all__ = ["is_mapping", "is_number", "is_row"]


def is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    """A mapping."""
    return isinstance(value, Mapping)


def is_row(value: Any) -> TypeGuard[Sequence[Any]]:
    """A list or a tuple."""
    return isinstance(value, list | tuple)


def is_number(value: Any) -> TypeGuard[float]:
    """A number that is no array: True and False are not, NumPy's scalars are."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
