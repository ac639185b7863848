"""A value that may still be on a device, as a plain one."""

from typing import Any

__all__ = ["scalar"]


def scalar(value: Any) -> Any:
    """The Python number of a 0-d array or NumPy scalar, which waits for its device; anything else as it is.

    >>> import numpy as np
    >>> scalar(np.float32(0.5)), scalar(3), scalar("l1")
    (0.5, 3, 'l1')
    """
    # item() and not float(): PyTorch warns at the latter where a gradient is recorded.
    return value.item() if getattr(value, "ndim", None) == 0 else value
