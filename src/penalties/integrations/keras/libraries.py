"""Keras, on a backend whose arrays are ours."""

from typing import Any, Final

from ...errors import BackendError
from ...training.libraries import library

__all__ = ["keras_for"]

_BACKENDS: Final = ("jax", "torch")


def keras_for(what: str) -> Any:
    """Import Keras for `what`; raises where it is not installed, or on a backend without penalties."""
    keras = library(what, "keras", extra="keras")
    backend = keras.config.backend()
    if backend not in _BACKENDS:
        raise BackendError(
            f'{what}: Keras runs on its backend "{backend}"; expected "jax" or "torch": set the environment variable '
            "KERAS_BACKEND before Keras is imported"
        )
    return keras
