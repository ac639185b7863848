"""Where gradients are taken: their norms compare only at one place."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ...pipeline.output import BASE
from .runlog import RunLog

__all__ = ["elsewhere", "place_words"]

_WORDS: Final = {
    "flat_logprobs": "log-probabilities",
    "logprobs": "log-probabilities",
    "flat_logits": "logits",
    "logits": "logits",
    "params": "parameters",
    "parameters": "parameters",
}


def place_words(inputs: Sequence[str]) -> str:
    """What gradients are taken with respect to, in words.

    >>> place_words(("flat_logits", "params"))
    'logits and parameters'
    """
    return " and ".join(dict.fromkeys(_WORDS.get(name, name) for name in inputs))


def elsewhere(run: RunLog) -> dict[str, tuple[str, ...]]:
    """The terms whose gradients are not taken where most are, with their places; at a tie, where the base loss's is."""
    places = {name: term.inputs for name, term in run.terms.items() if len(term.pull) and term.inputs}
    counts = Counter(places.values())
    if len(counts) < 2:
        return {}
    common = max(counts, key=lambda place: (counts[place], place == places.get(BASE)))
    return {name: place for name, place in places.items() if place != common}
