"""Double precision in JAX, where it is a switch."""

from contextlib import AbstractContextManager
from typing import Any

__all__ = ["double_precision"]


def double_precision(enabled: bool) -> AbstractContextManager[Any]:
    """JAX's 64-bit types, on or off inside a `with` block."""
    import jax
    import jax.experimental

    home: Any = jax
    if not hasattr(home, "enable_x64"):
        home = jax.experimental  # before JAX 0.8
    return home.enable_x64(enabled)
