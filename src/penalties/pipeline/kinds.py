"""What kind of thing a value is, in a form that type checkers can follow, and whether torch.compile is tracing."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

__all__ = ["compiling", "described", "is_dense", "is_mapping", "is_number", "is_row"]


def is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    """Whether this is a mapping."""
    return isinstance(value, Mapping)


def is_row(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether this is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether this is a number, such as a Python number or a NumPy scalar. True and False are not."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def is_dense(array: Any) -> bool:
    """Whether an array is its elements: not sparse, quantized or nested, nor with a mask that hides some."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return not isinstance(array, np.ma.MaskedArray)
    return array.layout == torch.strided and not array.is_quantized and not array.is_nested


def described(value: Any) -> str:
    """The kind of a value in words, for an error message: `a list`."""
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def compiling() -> bool:
    """Whether torch.compile is tracing."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
