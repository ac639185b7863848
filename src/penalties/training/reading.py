"""Reading the data of any client: arrays, tokens, targets and weights; errors name the datum by its index."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..errors import InputError

__all__ = ["inputs_of", "like", "numpy_of", "replaced", "targets_of", "tokens_of", "weights_of", "with_inputs"]


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
    return np.asarray(model_input.to_ints(), dtype=np.int64)


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
