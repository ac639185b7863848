"""Held-out texts with the loss of each token: the worst, the best, and the first ones, which stay the same.

They come from the forward of the evaluation, and change nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...training.batch import Batch
from ...training.reading import targets_of, tokens_of
from ..privacy import secret_in

__all__ = ["Examples", "pieces"]

_LONGEST: Final = 200
"""Tokens of an example that are kept."""
_LEADING: Final = 50
"""Tokens that are kept before the first one that counts, if the text is longer than that."""
_DIGITS: Final = 4
_UNKNOWN: Final = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class _Text:
    index: int
    loss: float
    datum: Any
    losses: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]

    @property
    def rank(self) -> float:
        """NaN is worse than anything."""
        return math.inf if math.isnan(self.loss) else self.loss


class Examples:
    """The texts of an evaluation, of which only those to be shown are kept."""

    def __init__(self, count: int) -> None:
        """Keep so many of each kind."""
        self._count = count
        self._seen = self._measured = 0
        self._worst: list[_Text] = []
        self._best: list[_Text] = []
        self._first: list[_Text] = []

    def __bool__(self) -> bool:
        """Whether any are to be kept."""
        return self._count > 0

    def add(self, batch: Batch, logprobs: Sequence[np.ndarray[Any, Any]]) -> None:
        """Look at the next batch; a text without a token that counts is left out."""
        found: list[_Text] = []
        for datum, counts, each in zip(batch.data, batch.masks, logprobs, strict=True):
            # Adding 0 makes −0 a 0.
            losses = 0.0 - each.astype(np.float64)
            if counts.any():
                with np.errstate(invalid="ignore"):
                    mean = float(losses[counts].mean())
                found.append(_Text(self._seen, mean, datum, losses, counts))
            self._seen += 1
        self._measured += len(found)
        self._first = [*self._first, *found][: self._count]
        self._worst = sorted([*self._worst, *found], key=lambda one: (-one.rank, one.index))[: self._count]
        self._best = sorted([*self._best, *found], key=lambda one: (one.rank, -one.index))[: self._count]

    def described(self, tokenizer: Any) -> list[dict[str, Any]]:
        """The texts as part of a record, each once; one that contains a secret of the environment is left out."""
        worst = self._worst[: (self._measured + 1) // 2]
        best = self._best[: self._measured - len(worst)]
        kinds: dict[int, list[str]] = {}
        texts: dict[int, _Text] = {}
        for kind, group in (("worst", worst), ("best", best), ("first", self._first)):
            for one in group:
                kinds.setdefault(one.index, []).append(kind)
                texts[one.index] = one
        found = [(one, _described(one, tokenizer)) for one in texts.values()]
        return [{"index": one.index, "kinds": kinds[one.index], **rest} for one, rest in found if rest is not None]


def _described(text: _Text, tokenizer: Any) -> dict[str, Any] | None:
    tokens: list[int] = [*tokens_of(0, text.datum)[:1].tolist(), *targets_of(0, text.datum).tolist()]
    first = int(text.counts.argmax()) + 1
    start = max(0, min(first - _LEADING, len(tokens) - _LONGEST))
    end = min(start + _LONGEST, len(tokens))
    shown = pieces(tokenizer, tokens[start:end])
    # In pieces, a secret would not be found any more.
    if secret_in("".join(shown)) or secret_in(tokenizer.decode(tokens)):
        return None
    # The first token is only read.
    losses = [None, *(round(float(one), _DIGITS) for one in text.losses)]
    counts = [False, *text.counts.tolist()]
    return {
        "loss": text.loss,
        "tokens": [
            [piece, losses[at] if counts[at] else None] for at, piece in zip(range(start, end), shown, strict=True)
        ],
        "before": start,
        "after": len(tokens) - end,
    }


def pieces(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """The text of each token, with the space before it; part of a character is what the tokenizer calls it.

    >>> from penalties.training.local.tiny import ByteTokenizer
    >>> pieces(ByteTokenizer(), [110, 111, 256])
    ['n', 'o', '<end>']
    """
    found: list[str] = []
    before: list[int] = []
    for token in tokens:
        # After another token: alone, the first of a text may lose its space.
        start, both = tokenizer.decode(before), tokenizer.decode([*before, token])
        piece = both[len(start) :] if both.startswith(start) else tokenizer.decode([token])
        if not piece or _UNKNOWN in piece:
            name = getattr(tokenizer, "convert_ids_to_tokens", None)
            named = None if name is None else name(token)
            piece = named if isinstance(named, str) else piece
        found.append(piece)
        before = [token]
    return found
