"""The named losses of a local client, as the service defines them: sums over targets, never averages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...errors import InputError, OptionError
from ..reading import inputs_of, numpy_of, weights_of
from .batch import Reader

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Loss", "loss_of"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Loss:
    """A sum over targets, differentiated by hand, so that it needs no graph."""

    read: Reader
    """Reads the inputs that it needs from a datum, besides the targets."""
    values: "Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, Tensor]]"
    """The loss of each target and its derivative, from the log-probabilities and those inputs."""


def loss_of(function: str, name: Any, config: Mapping[str, Any] | None) -> Loss:
    """The loss with this name; none has options."""
    if not isinstance(name, str) or name not in _LOSSES:
        raise OptionError(function, "loss_fn", name, " or ".join(f'"{known}"' for known in _LOSSES))
    if config:
        raise OptionError(function, "loss_fn_config", config, f"none: {name} has no options")
    return _LOSSES[name]


def _cross_entropy(logprobs: "Tensor", arrays: Mapping[str, "Tensor"]) -> "tuple[Tensor, Tensor]":
    """`−logprob·weight`."""
    slope = -arrays["weights"]
    return logprobs * slope, slope


def _weights(index: int, datum: Any, shape: tuple[int, ...]) -> Mapping[str, Array]:
    return {"weights": _checked(index, "weights", weights_of(index, datum, shape), shape)}


def _importance_sampling(logprobs: "Tensor", arrays: Mapping[str, "Tensor"]) -> "tuple[Tensor, Tensor]":
    """`−exp(logprob − old)·advantage`, which is its own derivative."""
    loss = (logprobs - arrays["logprobs"]).exp() * -arrays["advantages"]
    return loss, loss


def _old_and_advantages(index: int, datum: Any, shape: tuple[int, ...]) -> Mapping[str, Array]:
    given = inputs_of(index, datum)
    missing = [name for name in ("logprobs", "advantages") if name not in given]
    if missing:
        there = ", ".join(given)
        raise InputError(f"datum {index}: importance_sampling needs {' and '.join(missing)}; there is {there}")
    if "weights" in given:
        raise InputError(f"datum {index}: importance_sampling does not read weights; multiply the advantages by them")
    return {name: _checked(index, name, numpy_of(given[name]), shape) for name in ("logprobs", "advantages")}


def _checked(index: int, name: str, array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape != shape:
        raise InputError(f"datum {index}: its {name} have shape {array.shape} and its target_tokens {shape}")
    if not np.isfinite(array).all():
        kind = "nan" if np.isnan(array).any() else "inf"
        raise InputError(f"datum {index}: its {name} contain {kind}; expected finite numbers")
    return array.astype(np.float32)


_LOSSES: Final = {
    "cross_entropy": Loss(_weights, _cross_entropy),
    "importance_sampling": Loss(_old_and_advantages, _importance_sampling),
}
