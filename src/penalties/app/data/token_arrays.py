"""What some losses need for each token of a completion, beside its text: log-probabilities, advantages, candidates."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np

from ..problems import joined, nearest

__all__ = ["KEYS", "TokenArrays"]

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "importance_sampling": ("logprobs", "advantage"),
    "reverse_kl": ("candidates",),
}
"""The keys that lines have for a loss, besides their texts."""

Array = np.ndarray[Any, Any]


class TokenArrays(NamedTuple):
    """Numbers for the tokens of a completion, with or without the token that ends it."""

    columns: Mapping[str, list[Any]]
    """By key, one entry per token: numbers, or for candidates lists of tokens."""

    @classmethod
    def of(cls, loss: str, line: Mapping[str, Any]) -> "TokenArrays":
        """Those of a line, for a loss; a `ValueError` says what is wrong with it."""
        columns: dict[str, list[Any]] = {}
        for key in KEYS.get(loss, ()):
            if key not in line:
                found = joined(line or ["nothing"], "and")
                raise ValueError(f'has no "{key}", for train.loss = "{loss}"; found {found}{nearest(key, line)}')
            given = line[key]
            if key == "advantage" and _is_number(given):
                # One for the whole completion, whose tokens the log-probabilities count.
                given = [given] * len(columns["logprobs"])
            right, expected = (_is_tokens, "tokens") if key == "candidates" else (_is_number, "a number")
            if not isinstance(given, list) or not given or not all(right(one) for one in cast("list[Any]", given)):
                one = f"{expected} or a list with {expected}" if key == "advantage" else f"a list with {expected}"
                raise ValueError(f"{key} is not {one} for each token of its completion")
            columns[key] = cast("list[Any]", given)
        widths = sorted({len(row) for row in columns.get("candidates", ())})
        if len(widths) > 1:
            raise ValueError(
                f"candidates has {widths[0]} to {widths[-1]} tokens for a token; expected equally many for each"
            )
        counts = {key: len(column) for key, column in columns.items()}
        if len(set(counts.values())) > 1:
            found = joined((f"{key} has length {count}" for key, count in counts.items()), "and")
            raise ValueError(f"{found}; expected equal lengths")
        return cls(columns)

    def completed(self, tokens: Sequence[int], end: Sequence[int]) -> list[int]:
        """The tokens of the completion, with the end-of-text token if there are numbers for it."""
        if not self.columns:
            return [*tokens, *end]
        key, column = next(iter(self.columns.items()))
        if len(column) not in (len(tokens), len(tokens) + len(end)):
            also = f", or {len(tokens) + 1} with the one that ends it" if end else ""
            expected = f"{len(tokens)}, the number of tokens of its completion{also}"
            raise ValueError(f"{key} has length {len(column)}; expected {expected}")
        return [*tokens, *end[: len(column) - len(tokens)]]

    @property
    def width(self) -> int | None:
        """The number of candidates of each token; None without candidates."""
        return len(self.columns["candidates"][0]) if "candidates" in self.columns else None

    def inputs(self, targets: Array, weights: Array, start: int) -> dict[str, Array]:
        """The inputs of the loss: `start` is the index of the completion's first token among the targets.

        With candidates, those of the prompt are its own tokens, with weight 0.
        """
        here = slice(max(start, 0), None)
        shown = slice(max(-start, 0), max(-start, 0) + len(targets[here]))
        if self.width is not None:
            wide = np.repeat(targets[:, None], self.width, 1)
            wide[here] = self.columns["candidates"][shown]
            counted = np.zeros(wide.shape)
            counted[here] = 1.0
            return {"target_tokens": wide, "weights": counted}
        made: dict[str, Array] = {"target_tokens": targets, "weights": weights}
        for key, column in self.columns.items():
            array = np.zeros(len(targets))
            array[here] = column[shown]
            made["advantages" if key == "advantage" else key] = array
        return made


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_tokens(value: Any) -> bool:
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(entries) and all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in entries)
