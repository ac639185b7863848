"""Precision: JAX's switch for 64 bits, and gradients at 16."""

from contextlib import AbstractContextManager
from typing import Any, Final

__all__ = ["SCALES", "double_precision"]

SCALES: Final = (2.0**14, 2.0**-8)
"""What a gradient at float16 is taken times, in turn: what is out of range with one of them fits with the other."""


def double_precision(enabled: bool) -> AbstractContextManager[Any]:
    """JAX's 64-bit types, on or off inside a `with` block."""
    import jax
    import jax.experimental

    home: Any = jax
    if not hasattr(home, "enable_x64"):
        home = jax.experimental  # before JAX 0.8
    return home.enable_x64(enabled)
