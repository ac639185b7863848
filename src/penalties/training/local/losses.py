"""The losses that a local client knows by name, as the service defines them: sums over targets, nothing is averaged."""

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
    """A sum over targets, differentiated by hand: no graph is built of it."""

    read: Reader
    """What it needs of a datum beside the targets."""
    values: "Callable[[Tensor, Mapping[str, Tensor]], tuple[Tensor, Tensor]]"
    """The loss of each target and its derivative, of the log-probabilities and what was read."""


def loss_of(function: str, name: Any, config: Mapping[str, Any] | None) -> Loss:
    """The loss of a name; none of them has options."""
    if not isinstance(name, str) or name not in _LOSSES:
        raise OptionError(function, "loss_fn", name, " or ".join(f'"{known}"' for known in _LOSSES))
    if config:
        raise OptionError(function, "loss_fn_config", config, f"none: {name} has no options")
    return _LOSSES[name]


def _cross_entropy(logprobs: "Tensor", arrays: Mapping[str, "Tensor"]) -> "tuple[Tensor, Tensor]":
    """`−logprob·weight`."""
    slope = -arrays["weights"]
    return logprobs * slope, slope


def _weights(place: int, datum: Any, shape: tuple[int, ...]) -> Mapping[str, Array]:
    return {"weights": _checked(place, "weights", weights_of(place, datum, shape), shape)}


def _importance_sampling(logprobs: "Tensor", arrays: Mapping[str, "Tensor"]) -> "tuple[Tensor, Tensor]":
    """`−exp(logprob − old)·advantage`, which is its own derivative."""
    loss = (logprobs - arrays["logprobs"]).exp() * -arrays["advantages"]
    return loss, loss


def _old_and_advantages(place: int, datum: Any, shape: tuple[int, ...]) -> Mapping[str, Array]:
    given = inputs_of(place, datum)
    missing = [name for name in ("logprobs", "advantages") if name not in given]
    if missing:
        there = ", ".join(given)
        raise InputError(f"datum {place}: importance_sampling needs its {' and '.join(missing)}; there is {there}")
    if "weights" in given:
        raise InputError(f"datum {place}: importance_sampling reads no weights; multiply them into the advantages")
    return {name: _checked(place, name, numpy_of(given[name]), shape) for name in ("logprobs", "advantages")}


def _checked(place: int, name: str, array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape != shape:
        raise InputError(f"datum {place}: its {name} have shape {array.shape} and its target_tokens {shape}")
    if not np.isfinite(array).all():
        kind = "nan" if np.isnan(array).any() else "inf"
        raise InputError(f"datum {place}: its {name} hold {kind}; expected finite numbers")
    return array.astype(np.float32)


_LOSSES: Final = {
    "cross_entropy": Loss(_weights, _cross_entropy),
    "importance_sampling": Loss(_old_and_advantages, _importance_sampling),
}
