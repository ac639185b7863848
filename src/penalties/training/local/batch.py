"""Data made ready for a model: read, checked, padded on the right, and the way back to one result per datum."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...errors import InputError
from ..reading import targets_of, tokens_of
from .model import LocalModel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Batch", "Row", "batches", "check_tokens", "rows_of"]

Array = np.ndarray[Any, Any]
Reader = Callable[[int, Any, tuple[int, ...]], Mapping[str, Array]]


@dataclass(frozen=True)
class Row:
    """One datum: N tokens, (N,) or (N, K) targets, and what else a loss reads, each as the targets are."""

    tokens: Array
    targets: Array
    arrays: Mapping[str, Array]


class Batch:
    """Rows as arrays: B sequences padded to S tokens, with T real places in all, and K targets for each place."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Pad and pack them."""
        self.shapes: list[tuple[int, ...]] = [row.targets.shape for row in rows]
        self.lengths: list[int] = [len(row.tokens) for row in rows]
        longest = max(self.lengths)
        # The padding can be any token: a causal model's real places never look at what is behind them.
        self.tokens: Array = np.zeros((len(rows), longest), np.int64)
        for line, row in zip(self.tokens, rows, strict=True):
            line[: len(row.tokens)] = row.tokens
        self.places: Array = np.flatnonzero(np.arange(longest) < np.array(self.lengths)[:, None])
        """(T,): where the real places are among the B·S."""
        self.targets: Array = self._packed([row.targets for row in rows])
        """(T, K): a datum with fewer targets a place has zeros behind them."""
        self.arrays: dict[str, Array] = {
            name: self._packed([row.arrays[name] for row in rows]) for name in rows[0].arrays
        }
        """(T, K) each, in the same way."""

    @cached_property
    def _even(self) -> bool:
        """Whether all data have as many targets a place, so that nothing is cut off."""
        return all(shape[1:] == self.shapes[0][1:] for shape in self.shapes)

    def _packed(self, arrays: Sequence[Array]) -> Array:
        if self._even:
            return np.concatenate(arrays).reshape(len(self.places), -1)
        lines = [array.reshape(len(array), -1) for array in arrays]
        width = max(one.shape[1] for one in lines)
        return np.concatenate([np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in lines])

    def pack(self, tensors: "Sequence[Tensor]") -> "Tensor":
        """One tensor per datum, of the shape of its targets, packed as the targets are."""
        import torch

        if self._even:
            return torch.cat(list(tensors)).reshape(len(self.places), -1)
        lines = [tensor.reshape(len(tensor), -1) for tensor in tensors]
        width = self.targets.shape[1]
        return torch.cat([torch.nn.functional.pad(one, (0, width - one.shape[1])) for one in lines])

    def split(self, packed: Any) -> list[Any]:
        """Of an array or tensor with a line for each real place, those of each datum."""
        if isinstance(packed, np.ndarray):
            return np.split(cast("Array", packed), np.cumsum(self.lengths)[:-1])
        # Split, not sliced: the backward of each slice would write a whole tensor.
        return list(packed.split(self.lengths))

    def unpack(self, packed: Any) -> list[Any]:
        """Of an array or tensor packed as the targets are, that of each datum, in the shape of its targets."""
        if self._even:
            return self.split(packed if len(self.shapes[0]) == 2 else packed.reshape(-1))
        return [
            piece[:, : shape[1]] if len(shape) == 2 else piece[:, 0]
            for piece, shape in zip(self.split(packed), self.shapes, strict=True)
        ]


def batches(rows: Sequence[Row], size: int | None) -> list[Batch]:
    """The rows, in their order, in batches of at most `size`."""
    size = len(rows) if size is None else size
    return [Batch(rows[start : start + size]) for start in range(0, len(rows), size)]


def rows_of(model: LocalModel, data: Any, reader: Reader | None = None) -> list[Row]:
    """Every datum, read and checked; `reader` gives what a loss needs of one."""
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        raise InputError(f"data: got {type(data).__name__}; expected a list of data")
    found = [_row(model, place, datum, reader) for place, datum in enumerate(cast("Sequence[Any]", data))]
    if not found:
        raise InputError("data: got an empty list; expected at least one datum")
    return found


def _row(model: LocalModel, place: int, datum: Any, reader: Reader | None) -> Row:
    tokens = tokens_of(place, datum)
    check_tokens(model, f"datum {place}", tokens)
    targets = targets_of(place, datum)
    if len(targets) != len(tokens):
        raise InputError(
            f"datum {place}: it has {len(targets)} target_tokens and {len(tokens)} tokens in its model_input; expected "
            "as many (the target at a place is the token that comes next)"
        )
    if not targets.size:
        raise InputError(f"datum {place}: its target_tokens have shape {targets.shape}; expected one target at least")
    _check_vocabulary(f"datum {place}: its target_tokens", targets, model.outputs)
    return Row(tokens, targets, {} if reader is None else reader(place, datum, targets.shape))


def check_tokens(model: LocalModel, what: str, tokens: Array) -> None:
    """Refuse tokens that the model cannot read."""
    if not len(tokens):
        raise InputError(f"{what}: its model_input has no tokens; expected at least one")
    if len(tokens) > model.context:
        raise InputError(
            f"{what}: its model_input has {len(tokens)} tokens; the model reads at most {model.context}: cut it"
        )
    _check_vocabulary(f"{what}: its model_input", tokens, model.vocabulary)


def _check_vocabulary(what: str, tokens: Array, size: int) -> None:
    if tokens.min() < 0 or tokens.max() >= size:
        wrong = tokens[(tokens < 0) | (tokens >= size)][0]
        raise InputError(f"{what} hold {wrong}; expected tokens of the model's vocabulary, 0 to {size - 1}")
