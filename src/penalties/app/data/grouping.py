"""Batches of examples that are about as long, so that few tokens are padding."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from .mixture import Pick

__all__ = ["Grouping"]

_WINDOW: Final = 50
"""Steps whose examples are sorted together: enough for batches of similar lengths, few enough to stay random."""
_GROUPS: Final = 3
"""Sets the draws of batches apart from those of examples."""


class Grouping:
    """Which examples each step has: those of every 50 steps are sorted by length, and the batches come in random order.

    The examples are those that the steps have without it, so that a pass still has every example once. A step depends
    on the seed and on its number alone, so that a run can be resumed anywhere.
    """

    def __init__(
        self,
        pick: Callable[[int], Pick],
        lengths: Callable[[Sequence[Pick]], Sequence[int]],
        *,
        size: int,
        steps: int,
        seed: int,
    ) -> None:
        """`pick` returns the nth example; batches have `size` of them."""
        self._pick = pick
        self._lengths = lengths
        self._size = size
        self._steps = steps
        self._seed = seed
        self._window: tuple[int, list[list[Pick]]] | None = None

    def batch(self, step: int) -> list[Pick]:
        """The examples of a step."""
        number, index = divmod(step, _WINDOW)
        if self._window is None or self._window[0] != number:
            self._window = number, self._batches(number)
        return self._window[1][index]

    def _batches(self, number: int) -> list[list[Pick]]:
        """The batches of one window; the last has those of the remaining steps only."""
        first = number * _WINDOW
        count = max(1, min(_WINDOW, self._steps - first))
        picks = [self._pick(one) for one in range(first * self._size, (first + count) * self._size)]
        # Stable: equal lengths stay in the random order of the examples.
        order = np.argsort(self._lengths(picks), kind="stable")
        ordered = [picks[int(one)] for one in order]
        batches = [ordered[start : start + self._size] for start in range(0, len(ordered), self._size)]
        drawn = np.random.default_rng([self._seed, number, _GROUPS]).permutation(count)
        return [batches[one] for one in drawn]
