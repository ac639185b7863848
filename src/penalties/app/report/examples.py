"""Held-out texts with their tokens coloured by loss: the worst and the best, and the first ones over time."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..problems import counted
from .numbers import shown, steps_shown
from .reading import number
from .runlog import RunLog

if TYPE_CHECKING:
    from .records import TextRecord

__all__ = ["LEGEND", "Examples", "examples", "when"]

_BOUNDS: Final = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Losses at which the colour changes: the same on every page, so that pages can be compared."""
_SHOWN: Final = 20
"""Texts in a column of all runs of a page together: a text takes up to 8 KB, and a page should stay below 4 MB."""
_BROKEN: Final = "broken"
_READ: Final = "read"
"""The class of a token that is only read."""

LEGEND: Final = (
    (_READ, "not learned"),
    ("l0", f"below {_BOUNDS[0]}"),
    *((f"l{level}", f"from {shown(bound)}") for level, bound in enumerate(_BOUNDS, 1)),
)
"""The classes of tokens, and what they say."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text: what it is, and its tokens with their class and their loss in words."""

    label: str
    tokens: Sequence[tuple[str, str, str]]
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Examples:
    """Columns of texts, each with its heading."""

    columns: Sequence[tuple[str, Sequence[Text]]]


def when(step: int) -> str:
    """At which evaluation.

    >>> when(0), when(20)
    ('before training', 'after step 20')
    """
    return f"after step {steps_shown(step)}" if step else "before training"


def examples(run: RunLog, runs: int = 1) -> Examples | None:
    """The worst and the best texts of the last evaluation, and the first ones at both ends; None without any.

    Where several runs share a page, each shows fewer.
    """
    found = run.examples
    if not found:
        return None
    first, last = min(found), max(found)
    most = max(1, _SHOWN // runs)
    columns = [
        (f"Highest loss, {when(last)}", _texts(found[last], "worst")),
        (f"Lowest loss, {when(last)}", _texts(found[last], "best")),
        *((f"First texts, {when(step)}", _texts(found[step], "first")) for step in dict.fromkeys((first, last))),
    ]
    return Examples([(heading, texts[:most]) for heading, texts in columns if texts])


def _texts(records: "Sequence[TextRecord]", kind: str) -> list[Text]:
    return [_text(record) for record in records if kind in record["kinds"]]


def _text(record: "TextRecord") -> Text:
    loss = number(record.get("loss"))
    tokens = [_token(piece, number(value)) for piece, value in record["tokens"]]
    mean = "" if loss is None else f": mean loss {shown(loss)}"
    before, after = (_left_out(record.get(key, 0)) for key in ("before", "after"))
    return Text(f"Example {record['index']}{mean}", tokens, before, after)


def _token(piece: str, loss: float | None) -> tuple[str, str, str]:
    # A line that ends is a token, too.
    piece = piece.replace("\r", "␍").replace("\n", "↵\n")
    if loss is None:
        return piece, _READ, ""
    css = f"l{bisect.bisect_right(_BOUNDS, loss)}" if math.isfinite(loss) else _BROKEN
    return piece, css, shown(loss)


def _left_out(count: int) -> str:
    return f"{counted(count, 'token', steps_shown)} left out" if count > 0 else ""
