"""Plain Python values from values that may still be on a device."""

from typing import Any

__all__ = ["scalar"]


def scalar(value: Any) -> Any:
    """A 0-d array or NumPy scalar as a Python number, which waits for its device; anything else unchanged.

    >>> import numpy as np
    >>> scalar(np.float32(0.5)), scalar(3), scalar("l1")
    (0.5, 3, 'l1')
    """
    # item(), not float(): PyTorch warns about float() of a tensor that requires a gradient.
    return value.item() if getattr(value, "ndim", None) == 0 else value
