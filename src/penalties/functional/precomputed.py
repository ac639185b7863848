"""A loss that exists already."""

from typing import Any, overload

from ..arrays import ArrayT, ArrayTree
from ..errors import ShapeError
from . import examples
from .nests import gather
from .penalty import penalty

__all__ = ["precomputed"]


@overload
def precomputed(x: ArrayT) -> ArrayT: ...
@overload
def precomputed(x: ArrayTree) -> Any: ...
@penalty(example=examples.scalar, config="# For losses that a model of yours computes: see pn.collect.")
def precomputed(x: ArrayTree) -> Any:
    """A scalar that exists already, or the sum of several: makes a term of a loss that a model computes.

    The gradient is 1 at each scalar.

    - `x`: a 0-d array, or a nest of them, such as all values of one name that `pn.collect()` returns.

    >>> import numpy as np
    >>> float(precomputed([np.array(2.0), np.array(-0.5)]))
    1.5
    """
    leaves = gather("precomputed", keep=True, x=x)
    for (array,) in leaves.rows:
        if len(array.shape):
            shape = tuple(array.shape)
            raise ShapeError(f"precomputed: x has shape {shape}; expected a scalar: reduce it, for example by its mean")
    return leaves.ops.add([array for (array,) in leaves.rows])
