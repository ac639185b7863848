"""Metrics of a task over what the model says: `metrics` of `[samples]`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .data import Prompt

__all__ = ["METRICS", "Sample", "exact_match"]


class Sample(NamedTuple):
    """What the model made of the prompt of a held-out line."""

    prompt: Prompt
    """A text, or the messages of a conversation before the answer."""
    text: str
    """The model's continuation, or answer."""
    completion: str
    """That of the line."""


def exact_match(samples: Sequence[Sample]) -> float:
    """The fraction of samples that are the completion of their line, apart from white space around them.

    >>> exact_match([Sample("2 + 3 =", " 5", "5"), Sample("2 + 4 =", " 5", "6")])
    0.5
    """
    return sum(one.text.strip() == one.completion.strip() for one in samples) / len(samples)


METRICS: Final[Mapping[str, Callable[[Sequence[Sample]], Any]]] = {"exact_match": exact_match}
"""The metrics by name; others are paths of functions."""
