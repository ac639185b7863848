"""Where the sequences of a batch are: one a row, or several in a row, one after the other."""

import bisect
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["Layout", "Packing", "laid_out"]

Packing: TypeAlias = Literal["rows", "row"] | None
"""Several sequences in each of some rows, or all in one; None is one a row."""


class Layout(NamedTuple):
    """The shape of a batch, and where each sequence starts."""

    rows: int
    width: int
    places: list[tuple[int, int]]
    """The row of each sequence, and its first position there."""

    @property
    def size(self) -> int:
        """The number of tokens, padding included."""
        return self.rows * self.width

    @property
    def packed(self) -> bool:
        """Whether a row has several sequences."""
        return self.rows < len(self.places)


def laid_out(lengths: Sequence[int], packing: Packing = None) -> Layout:
    """Sequences of these lengths; rows are as long as the longest, and each takes the fullest that has room.

    >>> laid_out([2, 5, 3], "rows").places
    [(1, 3), (0, 0), (1, 0)]
    >>> laid_out([2, 5, 3], "row").places
    [(0, 0), (0, 2), (0, 7)]
    """
    longest = max(lengths)
    if packing is None:
        return Layout(len(lengths), longest, [(row, 0) for row in range(len(lengths))])
    places = [(0, 0)] * len(lengths)
    if packing == "row":
        start = 0
        for index, length in enumerate(lengths):
            places[index] = (0, start)
            start += length
        return Layout(1, start, places)
    # Longest first, each into the row with the least room that is enough.
    room: list[tuple[int, int]] = []
    rows = 0
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        found = bisect.bisect_left(room, (lengths[index], -1))
        if found == len(room):
            free, row = longest, rows
            rows += 1
        else:
            free, row = room.pop(found)
        places[index] = (row, longest - free)
        bisect.insort(room, (free - lengths[index], row))
    return Layout(rows, longest, places)
