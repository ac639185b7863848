"""How much goes through the model at once: rows in parts, and smaller parts where memory runs out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from ...errors import OptionError
from ...functional.options import check_count, is_whole
from .batch import Batch, Row, batches, cut
from .layout import Packing

__all__ = ["AUTO", "Limits", "Parts"]

AUTO: Final = "auto"

T = TypeVar("T")


class Limits:
    """The most rows, and the most tokens with padding, that go through a model at once; None is any number.

    With tokens "auto" there is no limit until memory runs out; then it is half of what did not fit.
    """

    packing: Packing = None
    """How data share rows."""

    def __init__(self, owner: str, rows: int | None, tokens: int | Literal["auto"] | None) -> None:
        """Check the limits."""
        if rows is not None:
            check_count(owner, "batch_size", rows, 1)
        self.rows: int | None = rows
        self.auto: bool = tokens == AUTO
        self.tokens: int | None = None
        if tokens is not None and tokens != AUTO:
            if not is_whole(tokens) or tokens < 1:
                expected = f'None, a whole number of at least 1, or "{AUTO}"'
                raise OptionError(owner, "micro_batch_tokens", tokens, expected)
            self.tokens = int(tokens)

    def of(self, rows: Sequence[Row]) -> "Parts":
        """These rows in parts within the limits."""
        return Parts(rows, self)


@dataclass(frozen=True)
class Parts:
    """Rows that go through a model in parts."""

    rows: Sequence[Row]
    limits: Limits

    @property
    def batches(self) -> list[Batch]:
        """The parts, in order."""
        return self._batches(self.rows)

    def _batches(self, rows: Sequence[Row]) -> list[Batch]:
        return batches(rows, self.limits.rows, self.limits.tokens, self.limits.packing)

    def cut(self, together: int) -> list[Sequence[Row]] | None:
        """The rows of each part, where so many data stay together; None if there is one, or they do not fit."""
        limits = self.limits
        found = cut(self.rows, limits.rows, limits.tokens, together=together, packing=limits.packing)
        if len(found) < 2 or any(len(part) > 1 and not self._fits(part) for part in found):
            return None
        return found

    def _fits(self, rows: Sequence[Row]) -> bool:
        """Whether the rows can go through the model at once; a single one always does."""
        return len(self._batches(rows)) == 1

    def fit(self, attempt: Callable[[Sequence[Batch]], T]) -> T:
        """What `attempt` returns for the parts; where memory runs out and the limit is "auto", for smaller ones."""
        while True:
            parts = self.batches
            failed = _tried(attempt, parts)
            if not isinstance(failed, _Full):
                return failed
            if not self.limits.auto or all(len(part.lengths) == 1 for part in parts):
                raise failed.error
            self._shrink(parts)

    def _shrink(self, parts: Sequence[Batch]) -> None:
        import torch

        self.limits.tokens = max(1, max(part.tokens.size for part in parts if len(part.lengths) > 1) // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class _Full:
    """Memory ran out."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _tried(attempt: Callable[[Sequence[Batch]], T], parts: Sequence[Batch]) -> T | _Full:
    import torch

    try:
        return attempt(parts)
    except torch.OutOfMemoryError as error:
        # Without the frames, which hold the tensors that were in memory.
        full = _Full(error.with_traceback(None))
    return full
