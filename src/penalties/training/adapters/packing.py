"""Batches as adapters read them: one array per datum, ragged, or one array for all; checked and joined."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np

from ...backends import Backend, no_array, owner, two_libraries
from ...errors import InputError, OptionError, ShapeError
from ...functional.reduction import hide, reduce
from ..reading import numpy_of

__all__ = [
    "REDUCTIONS",
    "Columns",
    "Metrics",
    "candidates",
    "columns_of",
    "extremes",
    "reject",
]

REDUCTIONS: Final = ("sum", "mean")
"""The reductions of an adapter: a term is a scalar, so there is no "none"."""


Metrics: TypeAlias = dict[str, Any]
"""Numbers, and 0-d arrays that are read on demand."""


class Columns(NamedTuple):
    """The inputs of an adapter, datum by datum: arrays of one library with matching shapes."""

    function: str
    ops: Backend
    columns: list[list[Any]]
    """One list per input, one array per datum."""
    masks: list[Any] | None
    """How much each position counts: (N,), or the shape of the datum's array."""

    @property
    def sampled(self) -> bool:
        """Whether there is one sampled token per position, (N,), rather than K candidates, (N, K)."""
        return len(self.columns[0][0].shape) == 1

    def flat(self) -> tuple[list[Any], Any]:
        """Every element of the batch in one row per input, and how much each counts."""
        ops = self.ops
        rows = [self._joined(column) for column in self.columns]
        if self.masks is None:
            return rows, None
        masks = self.masks
        if len(masks[0].shape) != len(self.columns[0][0].shape):
            pairs = zip(masks, self.columns[0], strict=True)
            masks = [ops.cast(mask, array)[..., None] + ops.zeros_like(array) for mask, array in pairs]
        mask = self._joined(masks)
        return [hide(ops, row, mask) for row in rows], mask

    def rows(self) -> tuple[list[Any], Any]:
        """All positions as rows, (positions, K), for each input, and how much each position counts.

        A candidate that does not count is excluded: its probability is 0.
        """
        ops = self.ops
        width = self.columns[0][0].shape[-1]
        matrices = [self._joined(column).reshape(-1, width) for column in self.columns]
        if self.masks is None:
            return matrices, None
        mask = self._joined(self.masks)
        if len(self.masks[0].shape) == 1:
            return [hide(ops, matrix, mask) for matrix in matrices], mask
        mask = mask.reshape(-1, width)
        return [candidates(ops, matrix, mask != 0) for matrix in matrices], ops.amax(ops.abs(mask), -1)

    def stacked(self) -> tuple[list[Any], Any]:
        """The sequences of all data as rows, (data, longest), for each input, and which data count.

        Elements that do not count are 0, and so is the padding of shorter sequences.
        """
        ops = self.ops
        longest = max(array.shape[0] for array in self.columns[0])
        matrices: list[Any] = []
        for column in self.columns:
            parts: list[Any] = []
            for index, array in enumerate(column):
                parts.append(hide(ops, array, None if self.masks is None else self.masks[index]))
                missing = longest - array.shape[0]
                if missing:
                    parts.append(ops.constant(np.zeros(missing), array))
            matrices.append(self._joined(parts).reshape(len(column), longest))
        if self.masks is None:
            return matrices, None
        counts = [ops.any(mask != 0).reshape(1) for mask in self.masks]
        return matrices, ops.upcast(self.function, ops.concatenate(counts))

    def _joined(self, arrays: list[Any]) -> Any:
        """All elements of some arrays in one row, as floats of at least 32 bits."""
        ops = self.ops
        if any(array.dtype != arrays[0].dtype for array in arrays):
            arrays = [ops.upcast(self.function, array) for array in arrays]
        return ops.upcast(self.function, ops.concatenate(arrays))


def columns_of(function: str, mask: Any, *, widths: bool = False, **inputs: Any) -> Columns:
    """The inputs of an adapter, each one array per datum or one array, checked against one another and the mask.

    NumPy arrays beside those of another library are converted to it. An error names the datum and both shapes. `widths`
    allows K to differ between data.
    """
    (first, given), *others = inputs.items()
    arrays = _listed(function, first, given)
    ops = owner(arrays[0])
    if ops is None:
        raise _absent(function, first, 0, arrays[0])
    leading = [_taken(function, ops, first, index, array, arrays[0]) for index, array in enumerate(arrays)]
    _check_shapes(function, first, leading, widths)

    def paired(name: str, given: Any, fits: Callable[[Any, Any], bool], expected: str) -> list[Any]:
        arrays = _listed(function, name, given)
        if len(arrays) != len(leading):
            raise ShapeError(
                f"{function}: {first} has {len(leading)} data and {name} has {len(arrays)}; expected one array per "
                "datum"
            )
        made: list[Any] = []
        for index, (array, like) in enumerate(zip(arrays, leading, strict=True)):
            made.append(_taken(function, ops, name, index, array, like))
            if not fits(like.shape, made[-1].shape) or len(made[-1].shape) != len(made[0].shape):
                raise ShapeError(
                    f"{function}: datum {index}: {first} has shape {tuple(like.shape)} and {name} has shape "
                    f"{tuple(made[-1].shape)}; expected {expected}"
                )
        return made

    equal = "equal shapes (nothing is broadcast)"
    columns = [leading, *(paired(name, given, lambda a, b: a == b, equal) for name, given in others)]
    either = "the same shape, or one number per position, and the same kind in all data"
    masks = None if mask is None else paired("mask", mask, lambda a, m: m in (a, a[:1]), either)
    return Columns(function, ops, columns, masks)


def _listed(function: str, name: str, given: Any) -> list[Any]:
    if owner(given) is not None:
        return [given]
    if isinstance(given, Mapping):
        given = list(cast("Mapping[Any, Any]", given).values())
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise no_array(function, name, given)
    listed = list(cast("Sequence[Any]", given))
    if not listed:
        raise InputError(f"{function}: {name} is empty; expected one array per datum")
    return listed


def _taken(function: str, ops: Backend, name: str, index: int, array: Any, like: Any) -> Any:
    """An array in the library and on the device of another."""
    mine = owner(array)
    if mine is ops:
        return array
    if mine is None and not hasattr(array, "to_numpy"):
        raise _absent(function, name, index, array)
    if mine is not None and mine.LIBRARY != "NumPy":
        raise two_libraries(function, "the first array", ops, f"{name}[{index}]", mine)
    # A copy: libraries warn about memory that is read-only.
    return ops.as_array(np.array(numpy_of(array)), like)


def _absent(function: str, name: str, index: int, given: Any) -> Exception:
    if given is None:
        return InputError(f"{function}: datum {index}: {name} is missing; expected an array")
    return no_array(function, f"{name}[{index}]", given)


def _check_shapes(function: str, name: str, arrays: Sequence[Any], widths: bool) -> None:
    start = tuple(arrays[0].shape)
    for index, array in enumerate(arrays):
        shape = tuple(array.shape)
        if len(shape) not in (1, 2):
            raise ShapeError(f"{function}: datum {index}: {name} has shape {shape}; expected (N,) or (N, K)")
        if len(shape) != len(start) or (shape[1:] != start[1:] and not widths):
            same = "" if widths else " with the same K"
            raise ShapeError(
                f"{function}: datum {index}: {name} has shape {shape} and that of datum 0 {start}; expected (N,) in "
                f"all data, or (N, K){same}"
            )


def candidates(ops: Backend, x: Any, shown: Any) -> Any:
    """Log-probabilities (positions, K) with −inf for a candidate that is not shown, and 0 where none is.

    A row of −inf alone is not a distribution: renormalised, it and its gradient would be NaN.
    """
    return ops.where(shown, x, ops.where(ops.any(shown)[..., None], -float("inf"), 0.0))


def extremes(ops: Backend, values: Any, mask: Any, name: str) -> dict[str, Any]:
    """Mean, minimum and maximum of the values that count; 0 if none does."""
    values = ops.stop_gradient(values)
    found = {name: reduce(ops, values, "mean", mask)}
    if values.shape[0] == 0:
        return found
    if mask is None:
        return {**found, f"{name}_max": ops.amax(values), f"{name}_min": -ops.amax(-values)}
    shown = mask != 0
    nothing = ops.sum(shown) == 0
    for end, sign in (("max", 1.0), ("min", -1.0)):
        largest = ops.amax(ops.where(shown, sign * values, -float("inf")))
        found[f"{name}_{end}"] = ops.where(nothing, 0.0, sign * largest)
    return found


def reject(function: str, why: str, **options: Any) -> None:
    """Raise for options that do not apply."""
    for option, value in options.items():
        if value is not None:
            raise OptionError(function, option, value, f"None: {why}")
