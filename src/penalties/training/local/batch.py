"""Data prepared for a model: read, checked, padded on the right; and results split per datum again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...errors import InputError
from ..reading import targets_of, tokens_of
from .layout import Layout, Packing, laid_out
from .model import LocalModel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Batch", "Row", "batches", "check_tokens", "cut", "rows_of"]

Array = np.ndarray[Any, Any]
Reader = Callable[[int, Any, tuple[int, ...]], Mapping[str, Array]]


@dataclass(frozen=True)
class Row:
    """One datum: N tokens, (N,) or (N, K) targets, and the other inputs of a loss, each with the targets' shape."""

    tokens: Array
    targets: Array
    arrays: Mapping[str, Array]


class Batch:
    """Data as arrays: B rows of S tokens, with a total of T real positions, and K targets per position.

    A datum is a row, padded, unless several share one by `packing`.
    """

    def __init__(self, rows: Sequence[Row], packing: Packing = None) -> None:
        """Pad and pack the rows."""
        self.shapes: list[tuple[int, ...]] = [row.targets.shape for row in rows]
        self.lengths: list[int] = [len(row.tokens) for row in rows]
        layout = laid_out(self.lengths, packing)
        # Padding can be any token: in a causal model no position attends to later ones.
        self.tokens: Array = np.zeros((layout.rows, layout.width), np.int64)
        starts = [row * layout.width + start for row, start in layout.places]
        for start, row in zip(starts, rows, strict=True):
            self.tokens.reshape(-1)[start : start + len(row.tokens)] = row.tokens
        self.positions: Array = np.concatenate(
            [np.arange(start, start + length) for start, length in zip(starts, self.lengths, strict=True)]
        )
        """(T,): the indices of the real positions among the B·S, one datum after the other."""
        self.position_ids: Array | None = self._counted(layout) if layout.packed else None
        """(B, S) if data share rows: the position of each token in its own sequence."""
        self.targets: Array = self._packed([row.targets for row in rows])
        """(T, K), padded with zeros for a datum with fewer targets per position."""
        self.arrays: dict[str, Array] = {
            name: self._packed([row.arrays[name] for row in rows]) for name in rows[0].arrays
        }
        """(T, K) each, padded in the same way."""

    def _counted(self, layout: Layout) -> Array:
        """Positions that start again with each sequence, and with the padding behind the last."""
        ends = np.zeros(layout.rows, np.int64)
        counted = np.zeros((layout.rows, layout.width), np.int64)
        for (row, start), length in zip(layout.places, self.lengths, strict=True):
            counted[row, start : start + length] = np.arange(length)
            ends[row] = max(ends[row], start + length)
        for line, end in zip(counted, ends, strict=True):
            line[end:] = np.arange(layout.width - end)
        return counted

    @cached_property
    def _even(self) -> bool:
        """Whether all data have the same number of targets per position, so that there is no padding."""
        return all(shape[1:] == self.shapes[0][1:] for shape in self.shapes)

    def _packed(self, arrays: Sequence[Array]) -> Array:
        if self._even:
            return np.concatenate(arrays).reshape(len(self.positions), -1)
        lines = [array.reshape(len(array), -1) for array in arrays]
        width = max(one.shape[1] for one in lines)
        return np.concatenate([np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in lines])

    def pack(self, tensors: "Sequence[Tensor]") -> "Tensor":
        """Pack one tensor per datum, each with the shape of its targets, like the targets."""
        import torch

        if self._even:
            return torch.cat(list(tensors)).reshape(len(self.positions), -1)
        lines = [tensor.reshape(len(tensor), -1) for tensor in tensors]
        width = self.targets.shape[1]
        return torch.cat([torch.nn.functional.pad(one, (0, width - one.shape[1])) for one in lines])

    def split(self, packed: Any) -> list[Any]:
        """Split an array or tensor with one row per real position into one per datum."""
        if isinstance(packed, np.ndarray):
            return np.split(cast("Array", packed), np.cumsum(self.lengths)[:-1])
        # Split rather than sliced: the backward of each slice would write a whole tensor.
        return list(packed.split(self.lengths))

    def unpack(self, packed: Any) -> list[Any]:
        """Split an array or tensor packed like the targets into one per datum, each with the shape of its targets."""
        if self._even:
            return self.split(packed if len(self.shapes[0]) == 2 else packed.reshape(-1))
        return [
            piece[:, : shape[1]] if len(shape) == 2 else piece[:, 0]
            for piece, shape in zip(self.split(packed), self.shapes, strict=True)
        ]


def batches(rows: Sequence[Row], size: int | None, tokens: int | None = None, packing: Packing = None) -> list[Batch]:
    """The rows, in order, in batches of at most `size` rows and `tokens` tokens, padding included.

    A row that is longer than that is a batch by itself.
    """
    return [Batch(part, packing) for part in cut(rows, size, tokens, packing=packing)]


def cut(
    rows: Sequence[Row], size: int | None, tokens: int | None, *, together: int = 1, packing: Packing = None
) -> list[Sequence[Row]]:
    """The rows of these batches, where each run of so many rows `together` stays in one."""
    parts: list[list[Row]] = []
    lengths: list[int] = []
    for start in range(0, len(rows), together):
        group = rows[start : start + together]
        lengths += [len(row.tokens) for row in group]
        if not parts or (size is not None and len(lengths) > size) or not _fits(lengths, tokens, packing):
            parts.append([])
            lengths = [len(row.tokens) for row in group]
        parts[-1] += group
    return list(parts)


def _fits(lengths: Sequence[int], tokens: int | None, packing: Packing) -> bool:
    """Whether sequences of these lengths take at most so many tokens, padding included."""
    if tokens is None or len(lengths) * max(lengths) <= tokens:
        return True
    # No layout has fewer than there are.
    return packing is not None and sum(lengths) <= tokens and laid_out(lengths, packing).size <= tokens


def rows_of(model: LocalModel, data: Any, reader: Reader | None = None) -> list[Row]:
    """Every datum, read and checked; `reader` returns the other inputs that a loss needs."""
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        raise InputError(f"data: got {type(data).__name__}; expected a list of data")
    found = [_row(model, index, datum, reader) for index, datum in enumerate(cast("Sequence[Any]", data))]
    if not found:
        raise InputError("data: got an empty list; expected at least one datum")
    return found


def _row(model: LocalModel, index: int, datum: Any, reader: Reader | None) -> Row:
    tokens = tokens_of(index, datum)
    check_tokens(model, f"datum {index}", tokens)
    targets = targets_of(index, datum)
    if len(targets) != len(tokens):
        raise InputError(
            f"datum {index}: it has {len(targets)} target_tokens and {len(tokens)} tokens in its model_input; expected "
            "as many (the target at a position is the next token)"
        )
    if not targets.size:
        raise InputError(f"datum {index}: its target_tokens have shape {targets.shape}; expected at least one target")
    _check_vocabulary(f"datum {index}: its target_tokens", targets, model.outputs)
    return Row(tokens, targets, {} if reader is None else reader(index, datum, targets.shape))


def check_tokens(model: LocalModel, what: str, tokens: Array) -> None:
    """Raise for tokens that the model cannot read."""
    if not len(tokens):
        raise InputError(f"{what}: its model_input has no tokens; expected at least one")
    if len(tokens) > model.context:
        raise InputError(
            f"{what}: its model_input has {len(tokens)} tokens; the model reads at most {model.context}: truncate it"
        )
    _check_vocabulary(f"{what}: its model_input", tokens, model.vocabulary)


def _check_vocabulary(what: str, tokens: Array, size: int) -> None:
    if tokens.min() < 0 or tokens.max() >= size:
        wrong = tokens[(tokens < 0) | (tokens >= size)][0]
        raise InputError(f"{what}: found {wrong}; expected tokens of the vocabulary, 0 to {size - 1}")
