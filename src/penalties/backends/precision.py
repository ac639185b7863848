"""Double precision in JAX, where it is a switch."""

from contextlib import AbstractContextManager
from typing import Any

__all__ = ["double_precision"]


def double_precision(enabled: bool) -> AbstractContextManager[Any]:
    """JAX's 64-bit types, on or off inside a `with` block."""
    import jax

    jax_: Any = jax
    if hasattr(jax_, "enable_x64"):
        return jax_.enable_x64(enabled)
    # Before JAX 0.8.
    from jax import experimental

    return experimental.enable_x64(enabled)
