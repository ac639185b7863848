"""How the rows of a pass are shared between processes."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ..batch import Row

__all__ = ["Counts", "Share", "by_tokens", "evenly", "one_each"]

_LOGPROBS: Final = "logprobs"


class Share(NamedTuple):
    """The rows of one process."""

    rows: Sequence[Row]
    added: Sequence[Row] = ()
    """More of them, so that every process has as many; they count for nothing."""
    at_once: int | None = None
    """How many rows go through the model at once; None is for the process to decide."""


class Counts(NamedTuple):
    """How much of some data each process has."""

    positions: Sequence[int]
    targets: Sequence[int]

    @classmethod
    def of(cls, shares: Sequence[Share]) -> "Counts":
        """From the shares of all processes."""
        return cls(
            [sum(len(row.tokens) for row in share.rows) for share in shares],
            [sum(row.targets.size for row in share.rows) for share in shares],
        )

    def rows(self, name: str) -> Sequence[int]:
        """Of a tensor of a graph, by name, as it travels: log-probabilities are flat."""
        return self.targets if name == _LOGPROBS else self.positions


def by_tokens(rows: Sequence[Row], count: int) -> list[Share]:
    """Shares with about as many tokens, in order; the first has at least one row, others may have none.

    >>> rows = [Row(np.zeros(n), np.zeros(n), {}) for n in (6, 2, 2, 2)]
    >>> [[len(row.tokens) for row in share.rows] for share in by_tokens(rows, 2)]
    [[6], [2, 2, 2]]
    """
    lengths = np.array([len(row.tokens) for row in rows])
    middles = np.cumsum(lengths) - lengths / 2
    owners = np.minimum(middles * count // lengths.sum(), count - 1).astype(int)
    owners[0] = 0
    return [Share([row for row, owner in zip(rows, owners, strict=True) if owner == rank]) for rank in range(count)]


def evenly(rows: Sequence[Row], count: int, at_once: int | None = None, tokens: int | None = None) -> list[Share]:
    """Shares with as many rows, in order, that take as many parts: for models that all processes run in step.

    `at_once` and `tokens` limit what goes through the model at once, as they do for one process.

    >>> rows = [Row(np.zeros(n), np.zeros(n), {}) for n in (6, 2, 2)]
    >>> [(len(share.rows), len(share.added)) for share in evenly(rows, 2)]
    [(2, 0), (1, 1)]
    >>> evenly(rows, 2, tokens=6)[0].at_once
    1
    """
    size = -(-len(rows) // count)
    own = [rows[index * size : (index + 1) * size] for index in range(count)]
    most = next(
        most
        for most in range(size if at_once is None else min(size, at_once), 0, -1)
        if most == 1 or tokens is None or all(_widest(share, most) <= tokens for share in own)
    )
    return [Share(share, [_nothing(rows[0])] * (size - len(share)), most) for share in own]


def one_each(parts: Sequence[Sequence[Row]], count: int, *, in_step: bool) -> list[Share]:
    """A part for each process, for as many as there are; `in_step` says that all processes must have rows.

    >>> rows = [Row(np.zeros(n), np.zeros(n), {}) for n in (6, 2, 2)]
    >>> [(len(share.rows), len(share.added)) for share in one_each([rows[:1], rows[1:]], 3, in_step=True)]
    [(1, 0), (2, 0), (0, 1)]
    """
    idle = Share([], [_nothing(parts[0][0])], 1) if in_step else Share([])
    return [Share(part, at_once=len(part) if in_step else None) for part in parts] + [idle] * (count - len(parts))


def _widest(rows: Sequence[Row], most: int) -> int:
    """The tokens with padding of the largest part, if so many rows are a part."""
    lengths = [len(row.tokens) for row in rows]
    parts = [lengths[start : start + most] for start in range(0, len(lengths), most)]
    return max((len(part) * max(part) for part in parts), default=0)


def _nothing(row: Row) -> Row:
    """A row of one token, which every loss multiplies by 0."""
    return Row(row.tokens[:1], row.targets[:1], {name: np.zeros_like(array[:1]) for name, array in row.arrays.items()})
