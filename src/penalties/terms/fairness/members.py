"""Which rows are of which group, and the mean of something in each."""

import math
from typing import Any, Final, NamedTuple

from ...backends import Backend, backend_of
from ...errors import BackendError, OptionError, ShapeError
from ...functional.options import check_count, check_flag
from ...functional.reduction import check_mask, hide, weighted_mean
from ..probabilities import probability_of

__all__ = ["Batch", "Rates", "batch_of", "rates"]


_MOST: Final = 100
"""Groups that labels may have without `count`."""


class Batch(NamedTuple):
    """The inputs of a term, checked and as rows."""

    ops: Backend
    p: Any
    """Probabilities, (rows,)."""
    labels: Any
    """0 or 1, (rows,); None for terms without."""
    members: Any
    """How much each row is of each group, (rows, groups)."""
    weights: Any
    """How much each row counts, (rows,)."""


class Rates(NamedTuple):
    """A number for each group."""

    of: Any
    """0 for a group without rows."""
    sizes: Any
    """How many rows it has, by their weights."""
    overall: Any
    """That of all rows together."""

    @property
    def present(self) -> Any:
        """Which groups have rows; one whose size is NaN has, so that NaN shows."""
        return self.sizes != 0


def batch_of(function: str, p: Any, labels: Any, groups: Any, *, count: Any, logits: bool, mask: Any) -> Batch:
    """The rows of a batch. Wrong values raise where they can be looked at, and are NaN elsewhere."""
    check_flag(function, "logits", logits)
    given = {"p": p, "groups": groups} if labels is None else {"p": p, "labels": labels, "groups": groups}
    ops = backend_of(function, **given, mask=mask)
    shape = tuple(p.shape)
    if labels is not None and tuple(labels.shape) != shape:
        raise ShapeError(f"{function}: labels has shape {tuple(labels.shape)}; expected {shape}, as p")
    shown = check_mask(function, ops, mask, shape, "the shape of p")
    probability = probability_of(function, ops, hide(ops, ops.upcast(function, p), shown), logits=logits)
    # One for each row, NaN too: a row without a weight would silently be left out.
    everywhere = (probability == probability) | (probability != probability)
    weights = ops.cast(everywhere if shown is None else shown, probability)
    if tuple(groups.shape) == shape:
        members = _of_labels(function, ops, groups, count, shown, probability)
    elif tuple(groups.shape[:-1]) == shape and groups.shape[-1] > 1:
        if count is not None and count != groups.shape[-1]:
            raise OptionError(function, "count", count, f"None or {groups.shape[-1]}, the number of columns of groups")
        members = hide(ops, ops.cast(ops.upcast(function, groups), probability), shown)
        members = _checked(function, ops, members, members < 0, "groups", "numbers of at least 0")
    else:
        # With one column nothing would be compared, and the value be 0 for ever.
        raise ShapeError(
            f"{function}: groups has shape {tuple(groups.shape)}; expected {shape}, the number of a group for each "
            f"row of p, or {(*shape, 'groups')}, how much each row is of each of two groups or more"
        )
    known = None
    if labels is not None:
        known = hide(ops, ops.cast(labels, probability), shown).reshape(-1)
        known = _checked(function, ops, known, (known != 0) & (known != 1), "labels", "0 or 1")
    return Batch(ops, probability.reshape(-1), known, members.reshape(-1, members.shape[-1]), weights.reshape(-1))


def _of_labels(function: str, ops: Backend, groups: Any, count: Any, shown: Any, like: Any) -> Any:
    if getattr(groups.dtype, "kind", None) in ("S", "U", "O"):
        expected = (
            "whole numbers: number the names of groups once, for all data, as np.unique(…, return_inverse=True) does"
        )
        raise BackendError(f"{function}: groups has dtype {groups.dtype}; expected {expected}")
    if "bool" not in str(groups.dtype):
        groups = ops.indices(function, "groups", groups)
    if shown is not None:
        groups = ops.where(shown != 0, groups, 0)
    if count is not None:
        check_count(function, "count", count, 1)
    elif ops.at_hand(groups):
        count = int(ops.read([groups.max()])[0]) + 1 if math.prod(groups.shape) else 1
        if count > _MOST:
            # A postcode, say: each number up to it would have its own rate.
            raise OptionError(function, "groups", count - 1, f"numbers from 0 to {_MOST - 1}, or count=")
    else:
        expected = "the number of groups, which cannot be read from labels on a GPU, in JAX or inside a compiler"
        raise OptionError(function, "count", None, expected)
    number = ops.cast(groups, like)
    wrong = (number < 0) | (number >= count)
    number = _checked(function, ops, number, wrong, "groups", f"the number of a group, from 0 to {count - 1}")
    same = number[..., None] == ops.arange(int(count), like)
    # NaN equals nothing: a row of no group would silently be left out.
    return ops.cast(same, like) + 0 * number[..., None]


def _checked(function: str, ops: Backend, x: Any, wrong: Any, name: str, expected: str) -> Any:
    if not ops.at_hand(x):
        return x * ops.cast(ops.where(wrong, math.nan, 1.0), x)
    if bool(wrong.any()):
        raise OptionError(function, name, ops.read([x[wrong][0]])[0], expected)
    return x


def rates(batch: Batch, values: Any, weights: Any) -> Rates:
    """The mean of some values in each group, and in all."""
    ops, shares = batch.ops, weights[:, None] * batch.members
    sizes = ops.sum(shares, 0)
    of = weighted_mean(ops, ops.sum(shares * values[:, None], 0), sizes)
    return Rates(of, sizes, weighted_mean(ops, ops.sum(weights * values), ops.sum(weights)))
