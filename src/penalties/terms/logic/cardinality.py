"""How many of some independent events happen: the Poisson binomial distribution, as logarithms.

The counts of single events are convolved in pairs, `log₂ n` times, all pairs of a level at once. Nothing is subtracted,
so that the smallest probability has all of its digits.
"""

from typing import Any

from ...backends import Backend
from ..probabilities import LARGEST
from .truths import Truth

__all__ = ["log_between", "log_counts"]


def log_between(ops: Backend, truth: Truth, low: int, high: int) -> Any:
    """`log P(low ≤ count ≤ high)` over the last axis, by whatever needs the fewest columns."""
    size = truth.log_true.shape[-1]
    negated = truth._replace(log_true=truth.log_false, log_false=truth.log_true)
    ways = [(high, truth, low, False), (size - low, negated, size - high, False)]
    if high == size:
        ways.append((low, truth, low, True))
    if low == 0:
        ways.append((size - high, negated, size - high, True))
    columns = [way[0] for way in ways]
    last, counted, first, open_ended = ways[columns.index(min(columns))]
    return _log_sum(ops, log_counts(ops, counted, last, open_ended=open_ended)[..., first:])


def log_counts(ops: Backend, truth: Truth, last: int, *, open_ended: bool = False) -> Any:
    """`log P(count = k)` over the last axis for k = 0 … `last`, of which the last is `≥` where it is `open_ended`."""
    if last == 0:
        everything = ops.sum(truth.log_false, -1)[..., None]
        return 0 * everything if open_ended else everything
    true, false = truth.log_true[..., None], truth.log_false[..., None]
    # There is no operation that stacks.
    counts = ops.where(ops.arange(2, true) == 0, false, true)
    odd: list[Any] = []
    while (size := counts.shape[-2]) > 1:
        if size % 2:
            odd.append(counts[..., -1, :])
        counts = _convolved(ops, counts[..., : size - 1 : 2, :], counts[..., 1:size:2, :], last, open_ended)
    counts = counts[..., 0, :]
    for more in odd:
        counts = _convolved(ops, counts, more, last, open_ended)
    return counts


def _convolved(ops: Backend, a: Any, b: Any, last: int, open_ended: bool) -> Any:
    """The counts of two sets of events together: `log Σ exp(aᵢ + bⱼ)` over i + j = k, for each k."""
    columns, wide = a.shape[-1], b.shape[-1]
    total = min(columns + wide - 2, last)
    # A sum of flags is a whole number in every library, and what has its type can be an index.
    whole = ops.sum(a != a)
    k, i = ops.arange(total + 1, whole)[:, None], ops.arange(columns, whole)
    j = k - i
    valid = (j >= 0) & (j < wide)
    pairs = a[..., None, :] + b[..., ops.where(valid, j, 0)]
    sums = _log_sum(ops, ops.where(valid, pairs, -LARGEST))
    if not open_ended or total < last:
        return sums
    # The last column takes every pair that reaches it.
    reaching = i[:, None] + ops.arange(wide, whole) >= last
    pairs = ops.where(reaching, a[..., :, None] + b[..., None, :], -LARGEST)
    reached = _log_sum(ops, pairs.reshape(*pairs.shape[:-2], columns * wide))
    return ops.where(k[:, 0] == last, reached[..., None], sums)


def _log_sum(ops: Backend, x: Any) -> Any:
    """`log Σ eˣ` over the last axis, of finite numbers."""
    largest = ops.amax(ops.stop_gradient(x), -1, keepdims=True)
    return largest[..., 0] + ops.log(ops.sum(ops.exp(x - largest), -1))
