"""From values per element or position to the result: sum, mean or none, with or without a mask."""

from typing import Any, Final

from ..backends import Backend
from ..errors import ShapeError

__all__ = ["REDUCTIONS", "check_mask", "hide", "reduce", "weighted_mean"]

REDUCTIONS: Final = ("sum", "mean", "none")


def reduce(ops: Backend, values: Any, reduction: str, mask: Any = None) -> Any:
    """Reduce all axes; with a mask `m` the mean is `Σ m·v / Σ m`, and 0 where `Σ m = 0`."""
    if mask is not None:
        mask = ops.cast(mask, values)
        values = mask * values
    if reduction == "sum":
        return ops.sum(values)
    if reduction == "none":
        return values
    if mask is None:
        return ops.mean(values)
    return weighted_mean(ops, ops.sum(values), ops.sum(mask))


def weighted_mean(ops: Backend, weighted: Any, weights: Any) -> Any:
    """A sum of weighted values by the sum of the weights; 0 where that is 0."""
    none = weights == 0
    return ops.where(none, 0.0, weighted / ops.where(none, 1.0, weights))


def check_mask(function: str, ops: Backend, mask: Any, shape: tuple[int, ...], reason: str) -> Any:
    """The mask as floats; raises unless it has the shape and holds real numbers."""
    if mask is None:
        return None
    if tuple(mask.shape) != tuple(shape):
        raise ShapeError(f"{function}: mask has shape {tuple(mask.shape)}; expected {tuple(shape)}, {reason}")
    return ops.upcast(function, mask)


def hide(ops: Backend, x: Any, mask: Any) -> Any:
    """`x` with 0 where the mask is 0, so that NaN or infinity in padding reaches neither value nor gradient.

    The mask is one number per element, or per vector of the last axis.
    """
    if mask is None:
        return x
    shown = mask != 0
    return ops.where(shown if len(mask.shape) == len(x.shape) else shown[..., None], x, 0.0)
