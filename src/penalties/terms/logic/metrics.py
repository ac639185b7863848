"""Numbers about the rows of a batch."""

from typing import Any

from ...backends import Backend
from ...functional.reduction import hide, weighted_mean

__all__ = ["mean_of"]


def mean_of(ops: Backend, values: Any, mask: Any) -> Any:
    """The mean over the rows that count, as a constant."""
    shown = hide(ops, ops.stop_gradient(values), mask)
    if mask is None:
        return ops.mean(shown)
    weights = ops.cast(mask, shown)
    return weighted_mean(ops, ops.sum(weights * shown), ops.sum(weights))
