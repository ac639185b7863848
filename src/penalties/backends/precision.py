"""Precision: JAX's switch for 64 bits, and gradients at 16."""

import math
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["double_precision", "gradient_scale"]


def double_precision(enabled: bool) -> AbstractContextManager[Any]:
    """JAX's 64-bit types, on or off inside a `with` block."""
    import jax
    import jax.experimental

    home: Any = jax
    if not hasattr(home, "enable_x64"):
        home = jax.experimental  # before JAX 0.8
    return home.enable_x64(enabled)


def gradient_scale(weight: Any) -> float:
    """What a gradient at float16 is multiplied by while it is computed, so that it fits: about the weight.

    A power of two is exact, and within these bounds costs float16 none of its normal numbers near 1.
    """
    if not isinstance(weight, int | float) or weight <= 0:
        return 1.0
    return 2.0 ** max(-8, min(8, round(math.log2(weight))))
