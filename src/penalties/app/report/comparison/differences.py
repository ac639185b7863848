"""How much two groups of runs differ, and whether that may be chance."""

from dataclasses import dataclass
from statistics import fmean, variance
from typing import Final

from .contenders import Group

__all__ = ["Difference", "between"]

_SAME: Final = 0.01
"""Losses with a smaller relative difference are about the same."""
_CLEAR: Final = 2.0
"""A mean difference of more than this many standard errors does not count as chance."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How much higher the second group ended than the first."""

    mean: float
    error: float | None
    """The standard error of the mean; None with one seed."""
    seeds: int
    size: float
    """The larger of the two losses."""

    @property
    def small(self) -> bool:
        """Whether both are about the same, also within the error over their seeds."""
        return max(abs(self.mean), _CLEAR * (self.error or 0.0)) <= _SAME * self.size

    @property
    def chance(self) -> bool:
        """Whether the seeds vary too much to tell."""
        return not self.small and self.error is not None and abs(self.mean) <= _CLEAR * self.error


def between(first: Group, second: Group) -> Difference:
    """The difference seed by seed over the seeds that both have, if there are several; else that of the means."""
    by_seed = {member.seed: end for member, end in zip(second.members, second.ends, strict=True)}
    pairs = [
        (end, by_seed[member.seed])
        for member, end in zip(first.members, first.ends, strict=True)
        if member.seed is not None and member.seed in by_seed
    ]
    size = max(abs(first.end), abs(second.end))
    if len(pairs) > 1:
        apart = [b - a for a, b in pairs]
        return Difference(fmean(apart), (variance(apart) / len(apart)) ** 0.5, len(apart), size)
    counts = [len(first.ends), len(second.ends)]
    freedom = sum(counts) - len(counts)
    error = None
    if freedom:
        # If one group has a single seed, the variance of the other stands in for both.
        squares = sum(variance(group.ends) * (len(group.ends) - 1) for group in (first, second) if len(group.ends) > 1)
        error = (squares / freedom * sum(1 / count for count in counts)) ** 0.5
    return Difference(second.end - first.end, error, min(counts), size)
