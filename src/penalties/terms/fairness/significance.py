"""Whether groups differ by more than chance: a permutation test (Fisher, 1935)."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

__all__ = ["p_value"]

_ELEMENTS: Final = 2**22
"""How many elements are shuffled at a time."""


def p_value(statistic: Callable[[Any], Any], members: Any, strata: Any, *, permutations: int, seed: int) -> float:
    """How likely a statistic as large is where groups are dealt out at random: `(1 + as large) / (1 + permutations)`.

    - `statistic`: from memberships (permutations, rows, groups) to one number for each permutation.
    - `members`: (rows, groups).
    - `strata`: whole numbers, (rows,); groups are dealt out among rows of one stratum alone.
    """
    observed = statistic(members[None])[0]
    if math.isnan(observed):
        # Nothing is as large as NaN: it would be the most significant of all.
        return math.nan
    orders = _orders(strata, members, permutations, seed)
    # The same gap, added up in another order, counts as large.
    at_least = sum(int((statistic(members[order]) >= observed - 1e-12).sum()) for order in orders)
    return (1 + at_least) / (1 + permutations)


def _orders(strata: Any, members: Any, permutations: int, seed: int) -> Iterator[Any]:
    """Permutations of the rows within strata, (some, rows) at a time."""
    draw = np.random.default_rng(seed)
    there = np.argsort(strata, kind="stable")
    size = max(1, _ELEMENTS // max(members.size, 1))
    for start in range(0, permutations, size):
        some = min(size, permutations - start)
        # Sorted by stratum, and within one by a random number; then back to where the stratum was.
        shuffled = np.lexsort((draw.random((some, len(strata))), np.broadcast_to(strata, (some, len(strata)))), axis=-1)
        order = np.empty_like(shuffled)
        order[:, there] = shuffled
        yield order
