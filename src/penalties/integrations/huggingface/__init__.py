"""Pipelines in Hugging Face's Trainer, and in the trainers of TRL that derive from it."""

from typing import Any

from .mixin import PenaltiesMixin

__all__ = ["PenaltiesMixin"]


def __getattr__(name: str) -> Any:
    """The class of callbacks, which needs transformers."""
    if name == "PenaltiesCallback":
        from .callback import callback_class

        return callback_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
