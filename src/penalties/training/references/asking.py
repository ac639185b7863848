"""Requesting log-probabilities from a client."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...errors import InputError, said
from ..futures import result_of
from ..reading import logprobs_of, targets_of
from ..sdk import data_for
from ..surrogates import FORWARD, forward_data

__all__ = ["Arrays", "requested"]

Arrays: TypeAlias = list[np.ndarray[Any, Any]]
"""One array per datum."""


def requested(
    provider: str, client: Any, data: Sequence[Any], indices: Sequence[int], *, first: bool = False
) -> Callable[[], Arrays]:
    """Send a forward of the data at these indices; returns a function that waits for their log-probabilities.

    `first` requests those of the model before training. Errors name the provider.
    """
    shapes = {index: targets_of(index, data[index]).shape for index in indices}
    method = "forward_initial" if first else "forward"
    forward = getattr(client, method, None)
    if not callable(forward):
        raise InputError(f"{provider}: the client, {type(client).__name__}, has no method {method}")
    try:
        asked = data_for(client, forward_data([data[index] for index in indices]))
        sent = forward(asked, *(() if first else (FORWARD,)))
    except Exception as error:
        raise InputError(f"{provider}: its {method} raised {said(error)}") from error

    def answer() -> Arrays:
        try:
            output = result_of(sent)
        except Exception as error:
            some = "" if len(indices) == len(data) else f", requested for data {', '.join(map(str, indices))},"
            raise InputError(f"{provider}: its forward{some} raised {said(error)}") from error
        return logprobs_of(output, shapes, provider)

    return answer
