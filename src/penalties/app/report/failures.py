"""Failures of a term by kind: messages that differ in their numbers alone are of one kind."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .runlog import Failure

__all__ = ["Kind", "kinds"]

_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|[-+]?\d[\d.,]*(?:e[-+]?\d+)?")


@dataclass(slots=True)
class Kind:
    """Failures with the same message but for its numbers, of which the first stands for all."""

    reason: str
    masked: str
    """The message with its numbers masked."""
    first: int
    """The step of the first failure."""
    last: int
    count: int = 0
    varied: bool = False
    """Whether there are other messages."""


def kinds(failures: Iterable[Failure]) -> list[Kind]:
    """The kinds, the most frequent first.

    >>> found = kinds([Failure(step, f"took {step / 2} s") for step in (3, 4)])
    >>> [(kind.masked, kind.reason, kind.count, kind.last) for kind in found]
    [('took # s', 'took 1.5 s', 2, 4)]
    """
    found: dict[str, Kind] = {}
    for failure in failures:
        masked = _NUMBER.sub("#", failure.reason)
        kind = found.setdefault(masked, Kind(failure.reason, masked, failure.step, failure.step))
        kind.count += 1
        kind.last = failure.step
        kind.varied = kind.varied or failure.reason != kind.reason
    return sorted(found.values(), key=lambda kind: -kind.count)
