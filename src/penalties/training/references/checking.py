"""References as arrays, checked against the data."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ...errors import InputError, said
from ..reading import numpy_of, targets_of
from .asking import Arrays

__all__ = ["checked"]


def checked(name: str, given: Any, data: Sequence[Any]) -> Arrays:
    """The arrays of a reference, checked: one per datum, each with the shape of its targets, or a single number.

    A reference of numbers, such as rewards, has one per datum, and the arrays are 0-d. All values are finite. An error
    names the reference, the datum and both shapes.

    >>> from penalties.training import Datum, ModelInput
    >>> data = [Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})]
    >>> checked("teacher", [[-1.0, -2.0]], data)
    [array([-1., -2.], dtype=float32)]
    >>> checked("reward", [0.5], data)
    [array(0.5, dtype=float32)]
    """
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__len__") or not hasattr(given, "__getitem__"):
        kind = type(cast("object", given)).__name__
        raise InputError(f'reference "{name}": got {kind}; expected a list with one array per datum, or a provider')
    entries: list[Any] = list(cast("Sequence[Any]", given))
    if len(entries) != len(data):
        raise InputError(
            f'reference "{name}": datum {min(len(entries), len(data))}: got {len(entries)} entries for '
            f"{len(data)} data; expected one per datum"
        )
    made: Arrays = []
    for index, (entry, datum) in enumerate(zip(entries, data, strict=True)):
        shape = targets_of(index, datum).shape
        if entry is None:
            raise InputError(f'reference "{name}": datum {index}: got None; expected an array of shape {shape}')
        try:
            with np.errstate(over="ignore"):
                array = np.array(numpy_of(entry), dtype=np.float32)
        except (TypeError, ValueError, KeyError) as error:
            raise InputError(f'reference "{name}": datum {index}: is not numeric ({said(error)})') from error
        if array.shape not in (shape, ()):
            raise InputError(
                f'reference "{name}": datum {index}: has shape {array.shape}; expected {shape}, the shape of its '
                "target_tokens, or a single number"
            )
        if made and (array.ndim == 0) != (made[0].ndim == 0):
            raise InputError(
                f'reference "{name}": datum {index}: has shape {array.shape} and datum 0 {made[0].shape}; expected a '
                "single number for every datum, or for none"
            )
        if not np.isfinite(array).all():
            kind = "nan" if np.isnan(array).any() else "inf"
            raise InputError(f'reference "{name}": datum {index}: contains {kind}; expected finite numbers')
        made.append(array)
    return made
