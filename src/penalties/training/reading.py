"""Reading the data of any client: arrays, tokens, targets and weights; errors name the datum by its index."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..errors import InputError, NonFiniteError

__all__ = [
    "inputs_of",
    "like",
    "logprobs_of",
    "numpy_of",
    "replaced",
    "targets_of",
    "tokens_of",
    "weights_of",
    "with_inputs",
]


def numpy_of(value: Any) -> np.ndarray[Any, Any]:
    """A `TensorData` of any client, a tensor, an array or a list, as a NumPy array."""
    if isinstance(value, np.ndarray):
        return cast("np.ndarray[Any, Any]", value)
    if isinstance(value, Mapping):
        found = cast("Mapping[str, Any]", value)
        return _shaped(found.get("data"), found.get("dtype", "float32"), found.get("shape"))
    if hasattr(value, "to_numpy") and getattr(value, "sparse_crow_indices", None) is None:
        return np.asarray(value.to_numpy())
    if hasattr(value, "to_torch"):
        value = value.to_torch()
    elif isinstance(getattr(value, "data", None), list):
        return _shaped(value.data, value.dtype, value.shape)
    if hasattr(value, "detach"):
        value = value.detach()
        if getattr(value, "layout", None) is not None and "sparse" in str(value.layout):
            value = value.to_dense()
        value = value.float().cpu() if value.is_floating_point() else value.cpu()
        return np.asarray(value.numpy())
    return _plain(value)


def _shaped(data: Any, dtype: Any, shape: Sequence[int] | None) -> np.ndarray[Any, Any]:
    array = _plain(data)
    if data is None or array.dtype.kind not in "iufb":
        raise InputError("an array: got no data; expected numbers")
    array = array.astype(str(dtype))
    try:
        return array if shape is None else array.reshape(tuple(shape))
    except ValueError as error:
        raise InputError(f"an array: {error}; expected as many numbers as the shape holds") from error


def _plain(value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"an array: {error}; expected rows of equal length") from error


def inputs_of(index: int, datum: Any) -> Mapping[str, Any]:
    """The `loss_fn_inputs` of a datum."""
    found = getattr(datum, "loss_fn_inputs", None)
    if not isinstance(found, Mapping):
        raise InputError(
            f"datum {index}: got {type(datum).__name__}; expected a datum, with model_input and loss_fn_inputs"
        )
    return cast("Mapping[str, Any]", found)


def tokens_of(index: int, datum: Any) -> np.ndarray[Any, Any]:
    """The tokens that the model reads."""
    model_input = getattr(datum, "model_input", None)
    if model_input is None or not hasattr(model_input, "to_ints"):
        raise InputError(f"datum {index}: its model_input is {type(model_input).__name__}; expected tokens")
    try:
        return np.asarray(model_input.to_ints(), dtype=np.int64)
    except ValueError as error:
        raise InputError(f"datum {index}: its model_input is not tokens alone ({error})") from error


def targets_of(index: int, datum: Any) -> np.ndarray[Any, Any]:
    """The tokens to predict, (N,) or (N, K)."""
    given = inputs_of(index, datum)
    if "target_tokens" not in given:
        there = ", ".join(given) or "nothing"
        raise InputError(f"datum {index}: its loss_fn_inputs have no target_tokens; there is {there}")
    targets = _of_datum(index, "target_tokens", given["target_tokens"])
    if targets.ndim not in (1, 2) or targets.dtype.kind not in "iu":
        raise InputError(
            f"datum {index}: its target_tokens have shape {targets.shape} and dtype {targets.dtype}; "
            "expected whole numbers of shape (N,) or (N, K)"
        )
    return targets


def weights_of(index: int, datum: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """How much each target counts: ones if the datum does not say."""
    given = inputs_of(index, datum)
    if "weights" not in given:
        return np.ones(shape, np.float32)
    weights = _of_datum(index, "weights", given["weights"]).astype(np.float32)
    if weights.shape != shape:
        raise InputError(f"datum {index}: its weights have shape {weights.shape} and its target_tokens {shape}")
    return weights


def _of_datum(index: int, name: str, value: Any) -> np.ndarray[Any, Any]:
    try:
        return numpy_of(value)
    except InputError as error:
        raise InputError(f"datum {index}: its {name}: {error}") from error


def logprobs_of(
    output: Any, shapes: Mapping[int, tuple[int, ...]], provider: str | None = None
) -> list[np.ndarray[Any, Any]]:
    """The log-probabilities in the output of a forward, in float32; errors name the datum, and the provider if any.

    `shapes` has the shape of the targets of each datum, by its index.
    """
    whole = "forward: the client" if provider is None else f"{provider}: its forward"
    outputs = getattr(output, "loss_fn_outputs", None)
    if not isinstance(outputs, Sequence):
        kind = type(output).__name__
        raise InputError(f"{whole} returned {kind}; expected an output with one loss_fn_outputs entry per datum")
    listed = cast("Sequence[Any]", outputs)
    if len(listed) != len(shapes):
        raise InputError(f"{whole} returned {len(listed)} outputs for {len(shapes)} data")
    found: list[np.ndarray[Any, Any]] = []
    for (index, shape), one in zip(shapes.items(), listed, strict=True):
        each = f"datum {index}: the forward" if provider is None else f"{provider}: datum {index}: its forward"
        if not isinstance(one, Mapping) or "logprobs" not in one:
            there = ", ".join(cast("Mapping[str, Any]", one)) if isinstance(one, Mapping) else type(one).__name__
            raise InputError(f"{each} returned {there or 'nothing'}; expected logprobs")
        try:
            array = numpy_of(cast("Any", one["logprobs"])).astype(np.float32)
        except InputError as error:
            raise InputError(f"datum {index}: the logprobs of the forward: {error}") from error
        # Some servers return the numbers of (N, K) targets without their shape.
        if array.size != math.prod(shape) or (array.ndim > 1 and array.shape != shape):
            expected = f"{shape}, the shape of its target_tokens"
            raise InputError(f"{each} returned logprobs of shape {array.shape}; expected {expected}")
        if not np.isfinite(array).all():
            kind = "nan" if np.isnan(array).any() else "inf"
            if provider is None:
                raise NonFiniteError(kind, f"{each} returned {kind} in logprobs; the model diverged")
            raise InputError(f"{each} returned nan or inf in logprobs")
        found.append(array.reshape(shape))
    return found


def like(other: Any, array: np.ndarray[Any, Any]) -> Any:
    """An array as the type of a datum's other arrays."""
    kind = cast("Any", type(other))
    return kind.from_numpy(array) if hasattr(kind, "from_numpy") else array


def with_inputs(datum: Any, inputs: Mapping[str, Any]) -> Any:
    """The same datum, of the same type, with other `loss_fn_inputs`."""
    return replaced(datum, loss_fn_inputs=dict(inputs))


def replaced(datum: Any, **changes: Any) -> Any:
    """The same datum, of the same type, with another `model_input` or other `loss_fn_inputs`."""
    if hasattr(datum, "__dataclass_fields__"):
        return dataclasses.replace(datum, **changes)
    if hasattr(datum, "model_copy"):
        return datum.model_copy(update=changes)
    fields = {"model_input": datum.model_input, "loss_fn_inputs": datum.loss_fn_inputs}
    return type(datum)(**fields | changes)
