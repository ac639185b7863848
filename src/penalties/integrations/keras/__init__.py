"""Penalties in Keras 3, on its torch and JAX backends: regularizers, and the callback that moves their weights."""

from typing import Any

__all__: list[str] = []
"""Empty: the names below need Keras, and are imported one by one."""


def __getattr__(name: str) -> Any:
    """The classes, which need Keras."""
    if name in ("Penalty", "ActivityPenalty"):
        from .regularizers import regularizer_classes

        return regularizer_classes()[name]
    if name == "PenaltiesCallback":
        from .callback import callback_class

        return callback_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
