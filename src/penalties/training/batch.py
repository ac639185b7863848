"""A batch of data, read and checked once: targets, lengths, and which positions count."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from ..errors import InputError
from .reading import inputs_of, like, logprobs_of, targets_of, weights_of, with_inputs

__all__ = ["Batch"]


class Batch(NamedTuple):
    """What is known about a batch before the forward."""

    data: list[Any]
    shapes: list[tuple[int, ...]]
    """The shape of each datum's targets: (N,), or (N, K)."""
    lengths: tuple[int, ...]
    masks: list[np.ndarray[Any, Any]]
    """Which positions count: those with a nonzero weight."""
    candidates: int | None
    """The number of targets per position, K; None for targets of shape (N,)."""

    @classmethod
    def of(cls, data: Any) -> "Batch":
        """Read and check data; an error names the datum."""
        if isinstance(data, str | bytes) or not isinstance(data, Sequence):
            raise InputError(f"forward_backward_custom: got data={type(data).__name__}; expected a list of data")
        listed: list[Any] = list(cast("Sequence[Any]", data))
        if not listed:
            raise InputError("forward_backward_custom: got no data; expected at least one datum")
        shapes = [targets_of(index, datum).shape for index, datum in enumerate(listed)]
        for index, shape in enumerate(shapes):
            if 0 in shape:
                raise InputError(f"datum {index}: its target_tokens have shape {shape}; expected at least one target")
            if shape[1:] != shapes[0][1:]:
                raise InputError(
                    f"datum {index}: its target_tokens have shape {shape} and those of datum 0 {shapes[0]}; expected "
                    "(N,) in all, or (N, K) with the same K"
                )
        masks = [weights_of(index, datum, shapes[index]) != 0 for index, datum in enumerate(listed)]
        masks = [mask if mask.ndim == 1 else mask.any(-1) for mask in masks]
        candidates = shapes[0][1] if len(shapes[0]) == 2 else None
        return cls(listed, shapes, tuple(shape[0] for shape in shapes), masks, candidates)

    def widened(self, tokens: Sequence[Sequence[np.ndarray[Any, Any]]]) -> "Batch":
        """The batch with more targets: after the one of a position come tokens, (N, K) of each datum, in any number.

        They have no weight.
        """
        made: list[Any] = []
        for index, (datum, more) in enumerate(zip(self.data, tokens, strict=True)):
            given = inputs_of(index, datum)["target_tokens"]
            targets, weights = targets_of(index, datum), weights_of(index, datum, self.shapes[index])
            wide = np.concatenate([targets[:, None], *more], axis=1).astype(np.int64)
            padding = ((0, 0), (0, wide.shape[1] - 1))
            arrays = {"target_tokens": wide, "weights": np.pad(weights[:, None], padding).astype(np.float32)}
            made.append(with_inputs(datum, {name: like(given, array) for name, array in arrays.items()}))
        return Batch.of(made)

    def logprobs(self, output: Any) -> list[np.ndarray[Any, Any]]:
        """The log-probabilities in the output of a forward, one array per datum, each with the shape of its targets."""
        return logprobs_of(output, dict(enumerate(self.shapes)))
