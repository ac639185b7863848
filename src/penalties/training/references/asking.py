"""Asking a client for log-probabilities, and reading its answer."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from ...errors import InputError, said
from ..futures import result_of
from ..reading import numpy_of, targets_of
from ..surrogates import FORWARD

__all__ = ["Arrays", "answered", "sent", "with_model_input"]

Arrays: TypeAlias = list[np.ndarray[Any, Any]]
"""One array per datum."""


def sent(provider: str, client: Any, data: list[Any], first: bool) -> Any:
    """The client's own future of a forward."""
    method = "forward_initial" if first else "forward"
    ask = getattr(client, method, None)
    if not callable(ask):
        raise InputError(f"{provider}: the client, {type(client).__name__}, has no method {method}; expected one")
    try:
        return ask(data) if first else ask(data, FORWARD)
    except Exception as error:
        raise InputError(f"{provider}: its {method} raised {said(error)}") from error


def with_model_input(datum: Any, model_input: Any) -> Any:
    """The same datum, of the same type, that reads something else."""
    kind = cast("Any", type(datum))
    if dataclasses.is_dataclass(kind):
        made: Any = dataclasses.replace(datum, model_input=model_input)
        return made
    if hasattr(datum, "model_copy"):
        return datum.model_copy(update={"model_input": model_input})
    return kind(model_input=model_input, loss_fn_inputs=datum.loss_fn_inputs)


def answered(provider: str, data: Sequence[Any], places: Sequence[int], sent: Any) -> Arrays:
    """The log-probabilities that a client's future gives for the data at these places; an error names who asked."""
    try:
        output = result_of(sent)
    except Exception as error:
        some = "" if len(places) == len(data) else f", asked for data {', '.join(map(str, places))},"
        raise InputError(f"{provider}: its forward{some} raised {said(error)}") from error
    listed = getattr(output, "loss_fn_outputs", None)
    if not isinstance(listed, Sequence):
        raise InputError(
            f"{provider}: its forward gave {type(output).__name__}; expected an output with loss_fn_outputs, one per "
            "datum"
        )
    outputs = cast("Sequence[Any]", listed)
    if len(outputs) != len(places):
        raise InputError(f"{provider}: its forward gave {len(outputs)} outputs for {len(places)} data")
    found: Arrays = []
    for place, one in zip(places, outputs, strict=True):
        if "logprobs" not in one:
            there = ", ".join(one) or "nothing"
            raise InputError(f"{provider}: datum {place}: its forward gave {there}; expected logprobs")
        array = numpy_of(one["logprobs"])
        shape: tuple[int, ...] = targets_of(place, data[place]).shape
        # Some servers give the numbers of (N, K) targets without their shape.
        if array.size != math.prod(shape) or (array.ndim > 1 and array.shape != shape):
            raise InputError(
                f"{provider}: datum {place}: its forward gave logprobs of shape {array.shape}; expected {shape}, as "
                "its target_tokens have"
            )
        if not np.isfinite(array).all():
            raise InputError(f"{provider}: datum {place}: its forward gave logprobs that are nan or infinite")
        found.append(array.reshape(shape).astype(np.float32))
    return found
