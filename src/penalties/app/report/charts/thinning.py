"""Which numbers of a long series a chart keeps."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..runlog import Floats, Ints

__all__ = ["BUCKETS", "keep", "means"]

BUCKETS: Final = 2000
"""A series is divided into at most this many buckets."""


def keep(rows: Floats, marked: NDArray[np.bool_], buckets: int) -> Ints:
    """The indices of the columns that stay; all of them if they are few.

    Columns are divided into buckets of equal width. Of each bucket those stay in which some row has its minimum or its
    maximum, the last one, and the first in which some row is marked; the very first stays too. NaN counts for nothing.

    >>> import numpy as np
    >>> line = np.zeros((1, 1000))
    >>> line[0, 617] = 5.0
    >>> kept = keep(line, np.zeros((1, 1000), bool), 10)
    >>> len(kept) <= 31, 617 in kept, 999 in kept
    (True, True, True)
    """
    height, count = rows.shape
    # Each bucket has at most so many.
    if count <= (2 * height + 1) * buckets:
        return np.arange(count, dtype=np.int64)
    width = _width(count, buckets)
    buckets = -(-count // width)
    start = np.arange(buckets) * width
    low = _padded(np.where(np.isfinite(rows), rows, np.inf), np.inf, buckets, width)
    high = np.where(np.isinf(low), -np.inf, low)
    gone = _padded(marked, False, buckets, width)
    there = np.isfinite(low).any(axis=2)
    chosen = [
        (start + low.argmin(axis=2))[there],
        (start + high.argmax(axis=2))[there],
        (start + gone.argmax(axis=2))[gone.any(axis=2)],
        np.minimum(start + width, count) - 1,
        np.array([0]),
    ]
    return np.unique(np.concatenate(chosen)).astype(np.int64)


def means(values: Floats, buckets: int) -> tuple[Ints, Floats]:
    """The mean of the finite numbers of each bucket, and the index of its last number; NaN where it has none.

    >>> at, mean = means(np.array([1.0, 3.0, np.nan, 8.0]), 2)
    >>> at.tolist(), mean.tolist()
    ([1, 3], [2.0, 8.0])
    """
    count = len(values)
    width = _width(count, buckets)
    starts = np.arange(0, count, width)
    good = np.isfinite(values)
    counted = np.add.reduceat(good.astype(np.int64), starts)
    sums = np.add.reduceat(np.where(good, values, 0.0), starts)
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.where(counted > 0, sums / np.maximum(counted, 1), np.nan)
    return np.append(starts[1:], count) - 1, found


def _width(count: int, buckets: int) -> int:
    return max(1, -(-count // max(1, buckets)))


def _padded(rows: NDArray[np.generic], filler: object, buckets: int, width: int) -> NDArray[np.generic]:
    height, count = rows.shape
    whole = np.full((height, buckets * width), filler, rows.dtype)
    whole[:, :count] = rows
    return whole.reshape(height, buckets, width)
