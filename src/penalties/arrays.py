"""Arrays of any library: the types that signatures speak of, and how to tell an array from anything else."""

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    import jax
    import torch

__all__ = ["Array", "ArrayT", "ArrayTree", "Reduction", "is_array"]

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
