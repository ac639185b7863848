"""Parameters in plain nests: lists, tuples and mappings of arrays, and the pytrees that JAX knows."""

from collections.abc import Iterator
from typing import Any

from ... import trees
from ...backends import owner
from ...errors import OptionError
from .parameter import Parameter

__all__ = ["parameters"]


def parameters(nest: Any) -> Iterator[Parameter]:
    """The floating arrays, by their keys; a tensor that does not require a gradient is frozen."""
    if hasattr(nest, "keys") and "batch_stats" in nest:
        expected = 'the parameters without the statistics: variables["params"]'
        raise OptionError("select", "model", list(nest.keys()), expected)
    flat = trees.flatten(nest)
    if flat.structure is None:
        return  # an array has no name
    for name, array in zip(flat.names, flat.leaves, strict=True):
        ops = owner(array)
        if ops is not None and ops.differentiable(array, requested=True):
            # Arrays of JAX never change, so equal ones are not tied: each has an update of its own.
            tie = name if ops.LIBRARY == "JAX" else id(array)
            trains = ops.LIBRARY != "PyTorch" or array.requires_grad
            yield Parameter(name, lambda array=array: array, None, tie, trains)
