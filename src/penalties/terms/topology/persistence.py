"""The features of a filtration, and how their births and deaths depend on the input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from ...training.libraries import library

__all__ = ["NEVER", "Floats", "Indices", "Persistence", "gudhi", "in_order", "scipy"]

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Indices: TypeAlias = "np.ndarray[Any, np.dtype[np.intp]]"

NEVER: Final = -1
"""The index of what kills a feature that is never killed."""

_WHAT: Final = "persistent homology"


@dataclass(frozen=True, slots=True)
class Persistence:
    """All features of the dimensions that were requested, one row each."""

    dimension: Indices
    birth: Floats
    death: Floats
    """Infinite for an essential feature, one that never dies."""
    pull: Callable[[Floats, Floats], Floats]
    """The gradient at the input of a function of births and deaths, from its slopes in each of them.

    That of a death which never happens has to be 0."""

    @property
    def life(self) -> Floats:
        """How long each feature lives; infinite for an essential one."""
        return self.death - self.birth


def in_order(dimensions: Indices, births: Floats, deaths: Floats) -> Indices:
    """The rows of features that live at all, by dimension, birth and death."""
    order = np.lexsort((deaths, births, dimensions))
    return order[deaths[order] > births[order]]


def gudhi(module: str = "gudhi") -> Any:
    """Gudhi, or one of its modules; says what to install where it or what it needs is missing."""
    for needed in ("gudhi", "sklearn"):
        library(_WHAT, needed, "topology")
    return library(_WHAT, module, "topology")


def scipy(module: str) -> Any:
    """A module of SciPy; says what to install where it is missing."""
    return library(_WHAT, f"scipy.{module}", "topology")
