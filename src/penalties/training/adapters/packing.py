"""Batches as adapters read them: one array per datum, ragged, or one array of all; made ready to compute with."""

from collections.abc import Mapping, Sequence
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
    "concatenated",
    "extremes",
    "refuse_for_candidates",
    "refuse_for_tokens",
]

REDUCTIONS: Final = ("sum", "mean")
"""How an adapter reduces: a term is a scalar, so that there is no "none"."""


Metrics: TypeAlias = dict[str, Any]
"""Numbers, and 0-d arrays that are read when somebody asks."""


class Columns(NamedTuple):
    """What an adapter reads of a batch, datum by datum: arrays of one library that fit one another."""

    function: str
    ops: Backend
    columns: list[list[Any]]
    """One list per input, one array per datum."""
    masks: list[Any] | None
    """How much each place counts: (N,), or the form of the datum's array."""

    @property
    def sampled(self) -> bool:
        """Whether there is one sampled token at each place, (N,), and not K candidates, (N, K)."""
        return len(self.columns[0][0].shape) == 1

    def flat(self) -> tuple[list[Any], Any]:
        """Every element of the batch in one row for each input, and how much each counts."""
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
        """All places below one another, (places, K), for each input, and how much each place counts.

        A candidate that does not count is left out: its probability is 0.
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
        """The sequences of all data below one another, (data, longest), for each input, and which data count.

        What does not count is 0, and so is what follows the end of a shorter one.
        """
        ops = self.ops
        longest = max(array.shape[0] for array in self.columns[0])
        matrices: list[Any] = []
        for column in self.columns:
            parts: list[Any] = []
            for place, array in enumerate(column):
                parts.append(hide(ops, array, None if self.masks is None else self.masks[place]))
                missing = longest - array.shape[0]
                if missing:
                    parts.append(ops.constant(np.zeros(missing), array))
            matrices.append(self._joined(parts).reshape(len(column), longest))
        if self.masks is None:
            return matrices, None
        counts = [ops.any(mask != 0).reshape(1) for mask in self.masks]
        return matrices, ops.upcast(self.function, ops.concatenate(counts))

    def _joined(self, arrays: list[Any]) -> Any:
        """All elements of some arrays in one row of floats of at least 32 bits."""
        ops = self.ops
        if any(array.dtype != arrays[0].dtype for array in arrays):
            arrays = [ops.upcast(self.function, array) for array in arrays]
        return ops.upcast(self.function, ops.concatenate(arrays))


def columns_of(function: str, mask: Any, *, widths: bool = False, **inputs: Any) -> Columns:
    """The inputs of an adapter, each an array per datum or one array, checked against one another and the mask.

    Arrays of NumPy beside those of another library are taken there. An error names the datum and both shapes. `widths`
    says that K may differ from datum to datum.
    """
    (first, given), *others = inputs.items()
    arrays = _listed(function, first, given)
    ops = owner(arrays[0])
    if ops is None:
        raise _absent(function, first, 0, arrays[0])
    leading = [_taken(function, ops, first, place, array, arrays[0]) for place, array in enumerate(arrays)]
    _check_shapes(function, first, leading, widths)
    columns = [leading]
    for name, other in others:
        column = _paired(function, ops, first, leading, name, other)
        for place, (a, b) in enumerate(zip(leading, column, strict=True)):
            if a.shape != b.shape:
                raise ShapeError(
                    f"{function}: datum {place}: {first} has shape {tuple(a.shape)} and {name} has shape "
                    f"{tuple(b.shape)}; expected equal shapes (nothing is broadcast)"
                )
        columns.append(column)
    masks = None
    if mask is not None:
        masks = _paired(function, ops, first, leading, "mask", mask)
        for place, (a, m) in enumerate(zip(leading, masks, strict=True)):
            if m.shape not in (a.shape, a.shape[:1]) or len(m.shape) != len(masks[0].shape):
                raise ShapeError(
                    f"{function}: datum {place}: {first} has shape {tuple(a.shape)} and mask has shape "
                    f"{tuple(m.shape)}; expected the same shape, or one number for each place, in all data alike"
                )
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
        raise InputError(f"{function}: {name} holds no data; expected one array for each datum")
    return listed


def _absent(function: str, name: str, place: int, given: Any) -> Exception:
    if given is None:
        return InputError(f"{function}: datum {place}: there is no {name}; expected an array")
    return no_array(function, f"{name}[{place}]", given)


def _paired(function: str, ops: Backend, first: str, leading: Sequence[Any], name: str, given: Any) -> list[Any]:
    """An input that goes with the first one, in its library and beside it."""
    arrays = _listed(function, name, given)
    if len(arrays) != len(leading):
        raise ShapeError(
            f"{function}: {first} has {len(leading)} data and {name} has {len(arrays)}; expected one array for each"
        )
    pairs = enumerate(zip(arrays, leading, strict=True))
    return [_taken(function, ops, name, place, array, like) for place, (array, like) in pairs]


def _taken(function: str, ops: Backend, name: str, place: int, array: Any, like: Any) -> Any:
    """An array in the library of another and beside it."""
    mine = owner(array)
    if mine is ops:
        return array
    if mine is None and not hasattr(array, "to_numpy"):
        raise _absent(function, name, place, array)
    if mine is not None and mine.LIBRARY != "NumPy":
        raise two_libraries(function, "the first array", ops, f"{name}[{place}]", mine)
    # A copy: libraries warn of memory that they may not write to.
    return ops.as_array(np.array(numpy_of(array)), like)


def _check_shapes(function: str, name: str, arrays: Sequence[Any], widths: bool) -> None:
    start = tuple(arrays[0].shape)
    for place, array in enumerate(arrays):
        shape = tuple(array.shape)
        if len(shape) not in (1, 2):
            raise ShapeError(f"{function}: datum {place}: {name} has shape {shape}; expected (N,) or (N, K)")
        if len(shape) != len(start) or (shape[1:] != start[1:] and not widths):
            same = "" if widths else " with the same K"
            raise ShapeError(
                f"{function}: datum {place}: {name} has shape {shape} and that of datum 0 {start}; expected (N,) in "
                f"all data, or (N, K){same}"
            )


def candidates(ops: Backend, x: Any, shown: Any) -> Any:
    """Log-probabilities (places, K) with −inf for a candidate that is not shown, and 0 at a place that has none.

    All −inf is no distribution: renormalised it would be NaN, and its gradient too.
    """
    return ops.where(shown, x, ops.where(ops.any(shown)[..., None], -float("inf"), 0.0))


def concatenated(ops: Backend, scalars: Sequence[Any]) -> Any:
    """Some scalars as one row."""
    return ops.concatenate([scalar.reshape(1) for scalar in scalars])


def extremes(ops: Backend, values: Any, mask: Any, name: str) -> dict[str, Any]:
    """The mean, smallest and largest of some values where they count; 0 where nothing does."""
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


def refuse_for_tokens(function: str, instead: str, **options: Any) -> None:
    """Refuse what belongs to distributions where there is one sampled token at each place."""
    for option, value in options.items():
        if value is not None:
            raise OptionError(
                function,
                option,
                value,
                "None: log-probabilities of shape (N,) are of one sampled token at each place, which are no "
                f"distribution to sum over; {instead}, or give target_tokens of shape (N, K)",
            )


def refuse_for_candidates(function: str, instead: str, **options: Any) -> None:
    """Refuse what belongs to sampled tokens where there are K candidates at each place."""
    for option, value in options.items():
        if value is not None:
            raise OptionError(
                function,
                option,
                value,
                "None: log-probabilities of shape (N, K) are of K candidates at each place, which are a distribution "
                f"and not drawn from one; {instead}",
            )
