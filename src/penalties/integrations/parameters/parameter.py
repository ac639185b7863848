"""What a parameter is here."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

__all__ = ["Parameter"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a model under one of its names."""

    name: str
    """Its path in the model, with dots."""
    read: Callable[[], Any]
    """Returns it as it is now: models replace theirs when they are moved, sharded or loaded."""
    owner: Any
    """The module that has it; None in a plain nest."""
    tie: Hashable
    """Equal for two names of one parameter."""
    trains: bool = True
    """False for one that is frozen."""
