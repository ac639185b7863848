"""The semantic loss of cardinality constraints (Xu et al., 2018)."""

import math
from typing import Any, Literal

from ...backends import Backend, backend_of, owner
from ...errors import OptionError, ShapeError
from ...functional.options import check_choice, check_flag, is_whole
from ...functional.penalty import strict_options
from ...functional.reduction import REDUCTIONS, check_mask, hide, reduce
from .cardinality import log_between, log_counts
from .metrics import mean_of
from .truths import truth_of

__all__ = ["semantic_loss"]


@strict_options
def semantic_loss(
    p: Any,
    *,
    exactly: Any = None,
    at_least: int | None = None,
    at_most: int | None = None,
    logits: bool = False,
    mask: Any = None,
    reduction: Literal["sum", "mean", "none"] = "mean",
) -> tuple[Any, dict[str, Any]]:
    """`−log P(so many variables are true)` where each is true by itself with its probability (Xu et al., 2018).

    0 where the constraint surely holds; +inf, with gradient 0, where it cannot: where probabilities are exactly 0 or 1,
    which those of finite logits are not.

    Metrics: `probability`, the mean probability that the constraint holds, and `satisfied`, the fraction of rows on
    which it does when every variable above one half counts as true.

    - `p`: probabilities, (…, variables).
    - `exactly`: how many are true: a whole number, or an array of them, (…).
    - `at_least`, `at_most`: how many are true, both or one of them.
    - `logits`: `p` holds log-odds, and their sigmoid is taken.
    - `mask`: which rows count, as flags or weights, in the shape of `p` without the last axis.
    - `reduction`: "mean" or "sum" over the rows, or "none" for a value per row.

    >>> import numpy as np
    >>> value, metrics = semantic_loss(np.array([[0.5, 0.5, 0.0]]), exactly=1)
    >>> round(float(value), 6), float(metrics["probability"])
    (0.693147, 0.5)
    """
    name = "semantic_loss"
    check_choice(name, "reduction", reduction, REDUCTIONS)
    check_flag(name, "logits", logits)
    counted = owner(exactly) is not None
    ops = backend_of(name, p=p, **({"exactly": exactly} if counted else {}), mask=mask)
    if len(p.shape) == 0 or p.shape[-1] == 0:
        raise ShapeError(f"{name}: p has shape {tuple(p.shape)}; expected a last axis of variables")
    rows, size = tuple(p.shape[:-1]), int(p.shape[-1])
    mask = check_mask(name, ops, mask, rows, "the shape of p without its last axis")
    truth = truth_of(name, ops, hide(ops, ops.upcast(name, p), mask), logits=logits)
    low: Any
    high: Any
    outside: Any = None
    if counted:
        if at_least is not None or at_most is not None:
            raise OptionError(name, "exactly", "an array", "None, with at_least or at_most")
        low, outside = _counts(ops, exactly, rows, size, mask)
        high = low
        log_p = ops.take_along(log_counts(ops, truth, size), low[..., None])[..., 0]
    else:
        low, high = _range(exactly, at_least, at_most, size)
        log_p = log_between(ops, truth, low, high)
    most = ops.sum(ops.cast(truth.possible, log_p), -1)
    least = ops.sum(ops.cast(~truth.refutable, log_p), -1)
    # Rounding may leave a logarithm just above 0; the gradient is right all the same.
    log_p = log_p - ops.clip(ops.stop_gradient(log_p), 0.0, None)
    losses = ops.where((most >= low) & (least <= high), -log_p, math.inf)
    losses = hide(ops, losses if outside is None else ops.where(outside, math.nan, losses), mask)
    held = ops.sum(ops.cast(truth.log_true > truth.log_false, log_p), -1)
    metrics = {
        "probability": mean_of(ops, ops.exp(-losses), mask),
        "satisfied": mean_of(ops, ops.cast((held >= low) & (held <= high), log_p), mask),
    }
    return reduce(ops, losses, reduction, mask), metrics


def _range(exactly: Any, at_least: Any, at_most: Any, size: int) -> tuple[int, int]:
    name = "semantic_loss"
    given = {"exactly": exactly, "at_least": at_least, "at_most": at_most}
    for option, number in given.items():
        if number is not None and not (is_whole(number) and 0 <= number <= size):
            raise OptionError(name, option, number, f"a whole number from 0 to {size}, the number of variables of p")
    if exactly is None and at_least is None and at_most is None:
        raise OptionError(name, "exactly", None, "how many are true, or at_least or at_most")
    if exactly is not None:
        if at_least is not None or at_most is not None:
            raise OptionError(name, "exactly", exactly, "None, with at_least or at_most")
        return int(exactly), int(exactly)
    low, high = 0 if at_least is None else int(at_least), size if at_most is None else int(at_most)
    if low > high:
        raise OptionError(name, "at_least", low, f"at most at_most={high}")
    return low, high


def _counts(ops: Backend, exactly: Any, rows: tuple[int, ...], size: int, mask: Any) -> tuple[Any, Any]:
    """A count for each row, and which rows have one that cannot be. That raises where values can be looked at."""
    name = "semantic_loss"
    counts = ops.indices(name, "exactly", exactly)
    if tuple(counts.shape) != rows:
        raise ShapeError(f"{name}: exactly has shape {tuple(counts.shape)}; expected {rows}, one number for each row")
    if mask is not None:
        counts = ops.where(mask != 0, counts, 0)
    wrong = (counts < 0) | (counts > size)
    if ops.at_hand(counts) and bool(wrong.any()):
        given = ops.read([counts[wrong][0]])[0]
        raise OptionError(name, "exactly", given, f"a whole number from 0 to {size}, the number of variables of p")
    return ops.where(wrong, 0, counts), wrong
