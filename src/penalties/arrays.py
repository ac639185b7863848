"""The types that signatures speak of: arrays, nests of arrays, reductions."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    import jax
    import numpy as np
    import torch

__all__ = ["Array", "ArrayT", "ArrayTree", "Reduction"]

Array: TypeAlias = "np.ndarray[Any, Any] | np.generic | torch.Tensor | jax.Array"
"""An array of any backend."""

ArrayT = TypeVar("ArrayT", bound="np.ndarray[Any, Any] | np.generic | torch.Tensor | jax.Array")
"""An array in, an array of the same kind out."""

ArrayTree: TypeAlias = Iterable[Any] | Mapping[Any, Any] | Any
"""A nest: a list, tuple or mapping of arrays, an iterable of parameters, or any pytree that JAX knows."""

Reduction: TypeAlias = Literal["sum", "mean", "none"]
"""What to do with the values that a function computes per element or per position."""
