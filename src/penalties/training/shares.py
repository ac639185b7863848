"""How a loss over a batch follows from the same loss over parts of the batch, declared where the loss is written."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

__all__ = ["Known", "Merge", "Shares", "positions", "sequences", "shared", "shares_of"]

F = TypeVar("F", bound=Callable[..., Any])
Array = np.ndarray[Any, Any]

_ATTRIBUTE: Final = "__batch_shares__"
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

Merge: TypeAlias = Literal["mean", "sum", "max", "min", "same", "value"] | Callable[[Mapping[str, Any]], Any]
"""How a metric of the batch follows from those of its parts: as the value does ("value"), or from other metrics."""


class Known(NamedTuple):
    """What is known about a batch before its forward."""

    data: Sequence[Any]
    shapes: Sequence[tuple[int, ...]]
    """Of the targets of each datum."""
    mask: Sequence[Array] | None = None
    """How much each position of each datum counts for the loss; None if it reads no mask."""


def positions(known: Known) -> Array:
    """How much each datum counts in a mean over positions: the sum of its mask, or its length."""
    if known.mask is None:
        return np.array([shape[0] for shape in known.shapes], np.float64)
    return np.array([mask.sum(dtype=np.float64) for mask in known.mask])


def sequences(known: Known) -> Array:
    """How much each datum counts in a mean over data."""
    return np.ones(len(known.data))


@dataclass(frozen=True)
class Shares:
    """A loss that is a sum or mean over positions or data, and how its metrics are merged."""

    function: Callable[..., Any]
    reduction: Literal["sum", "mean"]
    """Of the value, unless the option `reduction` says so."""
    counts: Callable[[Known], Array]
    """How much each datum counts in the mean, and in the means among the metrics; raises for data that are wrong."""
    metrics: Mapping[str, Merge]
    together: int = 1
    """The number of data that must stay together: 2 for pairs."""
    coupled: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict[str, tuple[Any, ...]])
    """Values of options with which it needs the whole batch."""


def shared(
    reduction: Literal["sum", "mean"],
    counts: Callable[[Known], Array] = positions,
    *,
    metrics: Mapping[str, Merge] = _NOTHING,
    together: int = 1,
    coupled: Mapping[str, tuple[Any, ...]] = _NOTHING,
) -> Callable[[F], F]:
    """Declare that a loss is a sum or mean over its data; the arguments are those of `Shares`."""

    def declare(fn: F) -> F:
        setattr(fn, _ATTRIBUTE, Shares(fn, reduction, counts, metrics, together, coupled))
        return fn

    return declare


def shares_of(fn: Any) -> Shares | None:
    """What a loss declares; None for any other function."""
    found = getattr(fn, _ATTRIBUTE, None)
    # functools.wraps copies attributes: somebody's wrapper around a loss is not that loss.
    return found if isinstance(found, Shares) and found.function is fn else None
