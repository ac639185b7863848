"""What to do about NaN and infinity: find them, or replace them. Every other function lets them propagate."""

import math
from collections.abc import Iterator
from typing import Any, TypeVar, cast

from ..arrays import ArrayT
from ..backends import backend_of
from ..errors import NonFiniteError
from .nests import gather
from .options import POSITIVE, check_number
from .penalty import strict_options

__all__ = ["replace_nonfinite", "validate"]

T = TypeVar("T")


@strict_options
def validate(x: T) -> T:
    """`x` itself, or `NonFiniteError` that says "nan" or "inf"; NaN comes first where there are both.

    It looks at values, so it waits for the device and works outside `jit` and `torch.compile` only.

    - `x`: an array, or a nest of arrays; a generator comes back as a tuple.

    >>> import numpy as np
    >>> validate(np.array([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    if isinstance(x, Iterator):
        x = cast("T", tuple(cast("Iterator[Any]", x)))
    leaves = gather("validate", keep=True, x=x)
    nans = int(leaves.reduce(_count_nan, "sum"))
    if nans:
        raise NonFiniteError("nan", f"validate: nan in {nans} of {leaves.size} values; expected finite numbers")
    infinities = int(leaves.reduce(_count_infinite, "sum"))
    if infinities:
        raise NonFiniteError("inf", f"validate: inf in {infinities} of {leaves.size} values; expected finite numbers")
    return x


@strict_options
def replace_nonfinite(x: ArrayT, *, nan: float = 0.0, inf: float = 1e10) -> ArrayT:
    """`x` with NaN replaced by `nan` and values beyond ±`inf`, infinite ones too, by ±`inf`; gradient 0 there.

    - `x`: an array.
    - `nan`: what replaces NaN.
    - `inf`: the largest size that a value may have, above 0.

    >>> import numpy as np
    >>> replace_nonfinite(np.array([1.0, np.nan, -np.inf])).tolist()
    [1.0, 0.0, -10000000000.0]
    """
    # What float32 can hold, whatever the dtype: nobody means more by a replacement.
    number = check_number("replace_nonfinite", "nan", nan, "a number within ±3e38", low=-3e38, high=3e38)
    bound = check_number("replace_nonfinite", "inf", inf, "a number above 0, at most 3e38", low=POSITIVE, high=3e38)
    ops = backend_of("replace_nonfinite", x=x)
    array: Any = ops.upcast("replace_nonfinite", x)
    missing = array != array
    return ops.where(missing, number, ops.clip(ops.where(missing, 0.0, array), -bound, bound))


def _count_nan(array: Any, _: str) -> Any:
    return (array != array).sum()


def _count_infinite(array: Any, _: str) -> Any:
    return ((array == math.inf) | (array == -math.inf)).sum()
