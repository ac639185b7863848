"""Adapters on the magnitude of log-probabilities: L1, L2, elastic net."""

from typing import Any, Literal

from ... import functional as f
from ...arrays import ArrayTree
from ...backends import Backend
from ...functional.options import check_choice
from ...functional.penalty import strict_options
from ...functional.reduction import reduce
from ..shares import shared
from .packing import REDUCTIONS, Metrics, columns_of

__all__ = ["elastic_net", "l1", "l2"]


@shared("sum", metrics={"l1_raw": "sum", "l1_mean": "mean"})
@strict_options
def l1(
    logprobs: ArrayTree,
    mask: ArrayTree = None,
    *,
    target: Literal["logprobs", "probs"] = "logprobs",
    reduction: Literal["sum", "mean"] = "sum",
) -> tuple[Any, Metrics]:
    """`Σ|x|` over the log-probabilities of a batch, or with `target="probs"` over their probabilities.

    To penalise a reference instead, name it: `inputs="teacher"`. Metrics: `l1_raw`, the sum, and `l1_mean`.

    >>> import numpy as np
    >>> value, metrics = l1([np.log([0.5, 0.25]), np.log([0.25])])
    >>> round(float(value), 6), round(float(metrics["l1_mean"]), 6)
    (3.465736, 1.155245)
    """
    ops, x, mask = _elements("l1", logprobs, mask, target, reduction)
    values = f.l1(x, reduction="none")
    return reduce(ops, values, reduction, mask), {
        "l1_raw": reduce(ops, ops.stop_gradient(values), "sum", mask),
        "l1_mean": reduce(ops, ops.stop_gradient(values), "mean", mask),
    }


@shared("sum", metrics={"l2_raw": "sum", "l2_mean": "mean", "center": "same"}, coupled={"center": ("mean",)})
@strict_options
def l2(
    logprobs: ArrayTree,
    mask: ArrayTree = None,
    *,
    target: Literal["logprobs", "probs"] = "logprobs",
    reduction: Literal["sum", "mean"] = "sum",
    center: Literal["mean"] | float | None = None,
    clip: float | None = None,
) -> tuple[Any, Metrics]:
    """`Σx²` over the log-probabilities of a batch, or over their probabilities; see `penalties.l2`.

    `center="mean"` subtracts the mean over all counted elements of the batch. Metrics: `l2_raw` and `l2_mean`, the sum
    and mean of squares without center and clip, and `center`, the number that was subtracted.

    >>> import numpy as np
    >>> value, metrics = l2([np.log([0.4, 0.3]), np.log([0.3])], center="mean")
    >>> round(float(value), 6), round(float(metrics["l2_mean"]), 6)
    (0.055174, 1.24623)
    """
    ops, x, mask = _elements("l2", logprobs, mask, target, reduction)
    squares = ops.stop_gradient(f.l2(x, reduction="none"))
    metrics: Metrics = {
        "l2_raw": reduce(ops, squares, "sum", mask),
        "l2_mean": reduce(ops, squares, "mean", mask),
    }
    if isinstance(center, str) and center == "mean":
        middle = reduce(ops, x, "mean", mask)
        metrics["center"] = ops.stop_gradient(middle)
        values = f.l2(x - middle, reduction="none", clip=clip)
    else:
        values = f.l2(x, reduction="none", center=center, clip=clip)
        if center is not None:
            metrics["center"] = float(center)
    return reduce(ops, values, reduction, mask), metrics


@shared("sum", metrics={"l1_component": "value", "l2_component": "value", "l1_ratio": "same"})
@strict_options
def elastic_net(
    logprobs: ArrayTree,
    mask: ArrayTree = None,
    *,
    target: Literal["logprobs", "probs"] = "logprobs",
    reduction: Literal["sum", "mean"] = "sum",
    l1_ratio: float = 0.5,
) -> tuple[Any, Metrics]:
    """`α·Σ|x| + (1 − α)·Σx²` with `α = l1_ratio` over the log-probabilities of a batch, or over their probabilities.

    Metrics: `l1_component` and `l2_component`, the two sums, and `l1_ratio`.

    >>> import numpy as np
    >>> value, _ = elastic_net([np.log([0.6, 0.4])])
    >>> round(float(value), 6)
    1.263824
    """
    ops, x, mask = _elements("elastic_net", logprobs, mask, target, reduction)
    values = f.elastic_net(x, l1_ratio=l1_ratio, reduction="none")
    still = ops.stop_gradient(x)
    return reduce(ops, values, reduction, mask), {
        "l1_component": reduce(ops, f.l1(still, reduction="none"), reduction, mask),
        "l2_component": reduce(ops, f.l2(still, reduction="none"), reduction, mask),
        "l1_ratio": float(l1_ratio),
    }


def _elements(function: str, logprobs: Any, mask: Any, target: str, reduction: str) -> tuple[Backend, Any, Any]:
    """Every element of a batch, and how much each counts."""
    check_choice(function, "target", target, ("logprobs", "probs"))
    check_choice(function, "reduction", reduction, REDUCTIONS)
    batch = columns_of(function, mask, widths=True, logprobs=logprobs)
    (x,), mask = batch.flat()
    return batch.ops, batch.ops.exp(x) if target == "probs" else x, mask
