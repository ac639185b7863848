"""Arrays of any library: the types that signatures speak of, and how to tell an array from anything else."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import numpy as np

from .errors import BackendError, OptionError, ShapeError

if TYPE_CHECKING:
    import jax
    import torch

__all__ = ["Array", "ArrayT", "ArrayTree", "Logits", "Reduction", "is_array", "logits_of"]

# A tuple, not a union: torch.compile cannot trace the union of NumPy's types.
_NUMPY: Final = (np.ndarray, np.generic)

Array: TypeAlias = "np.ndarray[Any, Any] | np.generic | torch.Tensor | jax.Array"
"""An array of any backend."""

ArrayT = TypeVar("ArrayT", bound="np.ndarray[Any, Any] | np.generic | torch.Tensor | jax.Array")
"""An array in, an array of the same kind out."""

ArrayTree: TypeAlias = Iterable[Any] | Mapping[Any, Any] | Any
"""A nest: a list, tuple or mapping of arrays, an iterable of parameters, or any pytree that JAX knows."""

Reduction: TypeAlias = Literal["sum", "mean", "none"]
"""What to do with the values that a function computes per element or per position."""


def is_array(x: object) -> bool:
    """Whether this is an array of NumPy, PyTorch or JAX.

    A library that is not loaded cannot have made it, so none is ever imported for this.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return True
    jax = sys.modules.get("jax")
    return isinstance(x, _NUMPY) or (jax is not None and isinstance(x, jax.Array))


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """Logits that need never exist: `hidden @ weightᵀ + bias`, capped as `softcap·tanh(x / softcap)`.

    It is accepted wherever logits are. Penalties on distributions compute it a block of rows at a time; anything else
    gets the array, `materialize()`.

    - `hidden`: hidden states, (…, H).
    - `weight`: of the output layer, (V, H).
    - `bias`: of the output layer, (V,).
    - `softcap`: a bound on the size of the logits.

    >>> import numpy as np
    >>> import penalties as pn
    >>> logits = pn.Logits(np.ones((3, 2)), np.zeros((5, 2)))
    >>> logits.shape, round(float(pn.entropy(logits, logits=True)), 6)
    ((3, 5), 1.609438)
    """

    hidden: Any
    weight: Any
    bias: Any = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        """Check that the arrays fit together."""
        given = {"hidden": self.hidden, "weight": self.weight, "bias": self.bias}
        arrays: dict[str, Any] = {name: array for name, array in given.items() if array is not None or name != "bias"}
        for name, array in arrays.items():
            if not is_array(array):
                kind = type(array).__name__
                raise BackendError(f"Logits: {name} is a {kind}; expected a NumPy array, a torch.Tensor or a jax.Array")
            if not _is_float(array):
                raise BackendError(f"Logits: {name} has dtype {array.dtype}; expected floats")
            if _library(array) is not _library(self.hidden):
                raise BackendError(f"Logits: hidden and {name} belong to different libraries; convert one of them")
            if _library(array) is sys.modules.get("torch") and array.device != self.hidden.device:
                there = f"hidden is on {self.hidden.device} and {name} on {array.device}"
                raise BackendError(f"Logits: {there}; move one of them")
        hidden, weight = tuple(self.hidden.shape), tuple(self.weight.shape)
        if not hidden or len(weight) != 2 or weight[1] != hidden[-1]:
            raise ShapeError(f"Logits: hidden has shape {hidden} and weight {weight}; expected (…, H) and (V, H)")
        if self.bias is not None and tuple(self.bias.shape) != weight[:1]:
            raise ShapeError(
                f"Logits: bias has shape {tuple(self.bias.shape)}; expected {weight[:1]}, one number per row of weight"
            )
        cap: Any = self.softcap
        if cap is not None and not (isinstance(cap, int | float) and cap is not True and 0 < cap < math.inf):
            raise OptionError("Logits", "softcap", cap, "None or a finite number above 0")
        if (jax := sys.modules.get("jax")) is not None:
            _register(jax)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the logits, (…, V)."""
        return (*self.hidden.shape[:-1], self.weight.shape[0])

    @property
    def ndim(self) -> int:
        """The number of axes of the logits."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """That of the hidden states, and of the logits."""
        return self.hidden.dtype

    @property
    def device(self) -> Any:
        """Where the hidden states are."""
        return self.hidden.device

    def materialize(self) -> Any:
        """The logits as an array."""
        weight, bias = self.weight, self.bias
        if weight.dtype != self.hidden.dtype:
            # As autocast has it: hidden states in half precision, and a layer that is stored in more.
            as_hidden: Any = "to" if _library(weight) is sys.modules.get("torch") else "astype"
            weight = getattr(weight, as_hidden)(self.hidden.dtype)
            bias = None if bias is None else getattr(bias, as_hidden)(self.hidden.dtype)
        logits = self.hidden @ weight.T
        if bias is not None:
            logits = logits + bias
        if self.softcap is not None:
            logits = self.softcap * _library(logits).tanh(logits / self.softcap)
        return logits

    def with_hidden(self, hidden: Any) -> "Logits":
        """The same output layer over other hidden states."""
        return logits_of([hidden, self.weight, self.bias], self.softcap)

    def split(self, lengths: Sequence[int]) -> "list[Logits]":
        """Rows of the logits, that many each, of PyTorch tensors."""
        return [self.with_hidden(hidden) for hidden in self.hidden.split(list(lengths))]


def logits_of(parts: Sequence[Any], softcap: float | None) -> Logits:
    """Hidden states, weight and bias, or whatever stands for them, as gradients do, without a check."""
    made = object.__new__(Logits)
    for name, part in zip(("hidden", "weight", "bias", "softcap"), (*parts, softcap), strict=True):
        object.__setattr__(made, name, part)
    return made


def _library(array: Any) -> Any:
    """The library with the functions for an array, under NumPy's names."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    return jax.numpy if jax is not None and isinstance(array, jax.Array) else np


def _is_float(array: Any) -> bool:
    # Of NumPy's kinds, "V" is what bfloat16 and other small floats have.
    return array.is_floating_point() if _library(array) is sys.modules.get("torch") else array.dtype.kind in "fV"


def _register(jax: Any) -> None:
    """Make logits a pytree of JAX, once."""
    global _registered
    if not _registered:
        _registered = True

        def flatten(one: Logits) -> Any:
            return (one.hidden, one.weight, one.bias), one.softcap

        def unflatten(softcap: Any, parts: Any) -> Logits:
            return logits_of(parts, softcap)

        jax.tree_util.register_pytree_node(Logits, flatten, unflatten)


_registered = False
