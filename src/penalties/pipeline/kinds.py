"""What a value is, in a way that type checkers follow from `Any`, and whether a compiler is looking."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

__all__ = ["compiling", "described", "is_mapping", "is_number", "is_row"]


def is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    """A mapping."""
    return isinstance(value, Mapping)


def is_row(value: Any) -> TypeGuard[Sequence[Any]]:
    """A list or a tuple."""
    return isinstance(value, list | tuple)


def is_number(value: Any) -> TypeGuard[float]:
    """A number that is no array: True and False are not, NumPy's scalars are."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def described(value: Any) -> str:
    """What kind of thing a value is, for an error message."""
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def compiling() -> bool:
    """Whether torch.compile is looking."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
