"""The order of examples: a function of the seed and of how many came before, so that a run can be resumed anywhere."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = ["Mixture", "Pick"]

_BLOCK: Final = 1 << 16
"""Examples whose files are drawn at a time."""
_FILES: Final = 1
"""Sets the draws of files apart from those of orders."""


class Pick(NamedTuple):
    """An example: the index of its file, and of its row there."""

    file: int
    row: int


class Mixture:
    """Which example comes when, from files of these sizes.

    Without weights a pass has every example of all files once. With weights the file of each example is drawn with
    these odds, and each file has passes of its own. A new order is drawn for each pass, unless `shuffle` is off.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float] | None, seed: int, *, shuffle: bool) -> None:
        """Draw nothing yet."""
        self._sizes = list(sizes)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        self._odds = None if weights is None else np.array(weights, float) / sum(weights)
        self._seed = seed
        self._shuffle = shuffle
        self._orders: dict[int | None, tuple[int, np.ndarray[Any, Any]]] = {}
        """By file, or None for all of them: the number of the latest pass, and its order."""
        self._counts: list[np.ndarray[Any, Any]] = [np.zeros(len(self._sizes), np.int64)]
        """How many examples of each file come before each block."""
        self._block: tuple[int, np.ndarray[Any, Any]] | None = None

    def pick(self, number: int) -> Pick:
        """The example that comes as the nth, counted from 0."""
        if self._odds is None:
            whole = self._index(None, number, int(self._starts[-1]))
            file = int(np.searchsorted(self._starts, whole, side="right")) - 1
            return Pick(file, whole - int(self._starts[file]))
        at, offset = divmod(number, _BLOCK)
        while len(self._counts) <= at:
            drawn = self._files(len(self._counts) - 1)
            self._counts.append(self._counts[-1] + np.bincount(drawn, minlength=len(self._sizes)))
        files = self._files(at)
        file = int(files[offset])
        before = int(self._counts[at][file]) + int((files[:offset] == file).sum())
        return Pick(file, self._index(file, before, self._sizes[file]))

    def _files(self, block: int) -> np.ndarray[Any, Any]:
        """The files of the examples of a block."""
        if self._block is None or self._block[0] != block:
            random = np.random.default_rng([self._seed, block, _FILES, 0])
            self._block = block, random.choice(len(self._sizes), _BLOCK, p=self._odds)
        return self._block[1]

    def _index(self, file: int | None, number: int, size: int) -> int:
        """The index of the example that comes as the nth of its file."""
        turn, index = divmod(number, size)
        if not self._shuffle:
            return index
        known = self._orders.get(file)
        if known is None or known[0] != turn:
            seed = [self._seed, turn] if file is None else [self._seed, turn, file + _FILES + 1]
            known = self._orders[file] = turn, np.random.default_rng(seed).permutation(size)
        return int(known[1][index])
