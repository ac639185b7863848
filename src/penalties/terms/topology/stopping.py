"""Where a Vietoris-Rips filtration may stop without a change of its pieces and loops."""

from typing import Any, TypeAlias

import numpy as np

__all__ = ["Ranks", "last_birth"]

Ranks: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"
"""The rank of the edge between any two points, from 1; 0 on the diagonal."""

_LANDMARKS = 24
_BLOCK = 256


def last_birth(ranks: Ranks) -> int:
    """The rank of the last edge that joins two pieces or closes a loop, or of a later one; 0 where there are no edges.

    An edge does neither where a third point is nearer to both of its ends than they are to one another: then it appears
    together with a triangle. The others are those of the relative neighbourhood graph; this is the longest of them.
    """
    edges = _candidates(ranks)
    for start in range(0, len(edges), _BLOCK):
        first, second = edges[start : start + _BLOCK].T
        direct = ranks[first, second]
        # An end itself is as far from the other one as the edge is long.
        alone = np.maximum(ranks[first], ranks[second]).min(1) == direct
        if alone.any():
            return int(direct[alone.argmax()])
    return 0


def _candidates(ranks: Ranks) -> Any:
    """Edges `(k, 2)` that none of a few points far apart rules out, longest first: a tenth to a third of all."""
    count = len(ranks)
    detour = np.full_like(ranks, np.iinfo(np.uint32).max)
    through = np.empty_like(ranks)
    nearest, landmark = detour[0].copy(), 0
    for _ in range(min(_LANDMARKS, count)):
        np.maximum(ranks[landmark][:, None], ranks[landmark], out=through)
        np.minimum(detour, through, out=detour)
        np.minimum(nearest, ranks[landmark], out=nearest)
        landmark = int(nearest.argmax())
    first, second = np.nonzero(np.triu(detour >= ranks, 1))
    order = np.argsort(ranks[first, second])[::-1]
    return np.stack([first[order], second[order]], -1)
