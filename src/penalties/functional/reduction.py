"""From values per element or position to the result: sum, mean or none, with or without a mask."""

from typing import Any, Final

from ..backends import Backend
from ..errors import ShapeError

__all__ = ["REDUCTIONS", "check_mask", "hide", "reduce"]

REDUCTIONS: Final = ("sum", "mean", "none")


def reduce(ops: Backend, values: Any, reduction: str, mask: Any = None) -> Any:
    """Reduce all axes; with a mask `m` the mean is `Σ m·v / Σ m`, and 0 where `Σ m = 0`."""
    if mask is not None:
        mask = ops.cast(mask, values)
        values = mask * values
    if reduction == "none":
        return values
    if reduction == "sum":
        return ops.sum(values)
    if mask is None:
        return ops.mean(values)
    total = ops.sum(mask)
    return ops.sum(values) / ops.where(total == 0, 1.0, total)


def check_mask(function: str, mask: Any, shape: tuple[int, ...], reason: str) -> None:
    """Refuse a mask of another shape."""
    if mask is not None and tuple(mask.shape) != tuple(shape):
        raise ShapeError(f"{function}: mask has shape {tuple(mask.shape)}; expected {tuple(shape)}, {reason}")


def hide(ops: Backend, x: Any, mask: Any) -> Any:
    """`x` with 0 where the mask is 0, so that NaN or infinity in padding reaches neither value nor gradient."""
    return x if mask is None else ops.where(mask != 0, x, 0.0)
