"""Thinning out steps for a chart so that every extreme remains."""

import numpy as np
from numpy.typing import NDArray

from ..runlog import Floats, Ints

__all__ = ["keep", "ranges"]


def keep(rows: Floats, broken: NDArray[np.bool_], points: int) -> Ints:
    """The indices of about this many columns that show the shape of these rows; all of them if there are no more.

    Columns are divided into buckets of equal width, as many as `points` allows. Of each bucket those stay in which some
    row is lowest or highest, and the first in which some row is broken: a line has its true envelope, and a gap where
    there is one. The first and the last column stay. What is NaN in `rows` counts for nothing.

    >>> import numpy as np
    >>> line = np.zeros((1, 1000))
    >>> line[0, 617] = 5.0
    >>> kept = keep(line, np.zeros((1, 1000), bool), 20)
    >>> len(kept) <= 20, 617 in kept
    (True, True)
    """
    count = rows.shape[1]
    if count <= points:
        return np.arange(count, dtype=np.int64)
    buckets = max(1, (points - 2) // (2 * max(1, len(rows))))
    found = _extremes(rows, broken, buckets)
    while len(found) < points and buckets < count:
        # Rows that share their extremes leave room for more.
        buckets *= 2
        more = _extremes(rows, broken, buckets)
        if len(more) > points:
            break
        found = more
    return found


def _extremes(rows: Floats, broken: NDArray[np.bool_], buckets: int) -> Ints:
    height, count = rows.shape
    width = -(-count // buckets)
    buckets = -(-count // width)
    low = np.full((height, buckets * width), np.inf)
    low[:, :count] = np.where(np.isfinite(rows), rows, np.inf)
    high = np.where(np.isinf(low), -np.inf, low).reshape(height, buckets, width)
    low = low.reshape(height, buckets, width)
    gone = np.zeros((height, buckets * width), bool)
    gone[:, :count] = broken
    gone = gone.reshape(height, buckets, width)
    start = np.arange(buckets) * width
    there = np.isfinite(low).any(axis=2)
    chosen = [
        (start + low.argmin(axis=2))[there],
        (start + high.argmax(axis=2))[there],
        (start + gone.argmax(axis=2))[gone.any(axis=2)],
        np.array([0, count - 1]),
    ]
    return np.unique(np.concatenate(chosen)).astype(np.int64)


def ranges(steps: Ints, *, gap: float) -> list[tuple[int, int]]:
    """Steps as ranges from first to last; steps at most `gap` apart share a range.

    >>> import numpy as np
    >>> ranges(np.array([3, 4, 5, 90]), gap=1)
    [(3, 5), (90, 90)]
    """
    if not len(steps):
        return []
    cuts = np.flatnonzero(np.diff(steps) > gap)
    firsts, lasts = steps[np.append(0, cuts + 1)], steps[np.append(cuts, len(steps) - 1)]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
