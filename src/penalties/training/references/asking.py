"""Requesting log-probabilities from a client, and reading its answer."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from ...errors import InputError, said
from ..futures import result_of
from ..reading import numpy_of, targets_of
from ..surrogates import FORWARD

__all__ = ["Arrays", "answered", "sent"]

Arrays: TypeAlias = list[np.ndarray[Any, Any]]
"""One array per datum."""


def sent(provider: str, client: Any, data: list[Any], first: bool) -> Any:
    """The client's own future of a forward."""
    method = "forward_initial" if first else "forward"
    ask = getattr(client, method, None)
    if not callable(ask):
        raise InputError(f"{provider}: the client, {type(client).__name__}, has no method {method}")
    try:
        return ask(data) if first else ask(data, FORWARD)
    except Exception as error:
        raise InputError(f"{provider}: its {method} raised {said(error)}") from error


def answered(provider: str, data: Sequence[Any], indices: Sequence[int], sent: Any) -> Arrays:
    """The log-probabilities in a client's future, for the data at these indices; errors name the provider."""
    try:
        output = result_of(sent)
    except Exception as error:
        some = "" if len(indices) == len(data) else f", requested for data {', '.join(map(str, indices))},"
        raise InputError(f"{provider}: its forward{some} raised {said(error)}") from error
    listed = getattr(output, "loss_fn_outputs", None)
    if not isinstance(listed, Sequence):
        raise InputError(
            f"{provider}: its forward returned {type(output).__name__}; expected an output with one loss_fn_outputs "
            "entry per datum"
        )
    outputs = cast("Sequence[Any]", listed)
    if len(outputs) != len(indices):
        raise InputError(f"{provider}: its forward returned {len(outputs)} outputs for {len(indices)} data")
    found: Arrays = []
    for index, one in zip(indices, outputs, strict=True):
        if "logprobs" not in one:
            there = ", ".join(one) or "nothing"
            raise InputError(f"{provider}: datum {index}: its forward returned {there}; expected logprobs")
        array = numpy_of(one["logprobs"])
        shape: tuple[int, ...] = targets_of(index, data[index]).shape
        # Some servers return the numbers of (N, K) targets without their shape.
        if array.size != math.prod(shape) or (array.ndim > 1 and array.shape != shape):
            raise InputError(
                f"{provider}: datum {index}: its forward returned logprobs of shape {array.shape}; expected {shape}, "
                "the shape of its target_tokens"
            )
        if not np.isfinite(array).all():
            raise InputError(f"{provider}: datum {index}: its forward returned nan or inf in logprobs")
        found.append(array.reshape(shape).astype(np.float32))
    return found
