"""The inputs at which gradients are measured: norms are comparable only if they are measured at the same inputs."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ...pipeline.output import BASE
from .runlog import RunLog

__all__ = ["inputs_in_words", "measured_elsewhere"]

_WORDS: Final = {
    "flat_logprobs": "log-probabilities",
    "logprobs": "log-probabilities",
    "flat_logits": "logits",
    "logits": "logits",
    "params": "parameters",
    "parameters": "parameters",
}


def inputs_in_words(inputs: Sequence[str]) -> str:
    """What gradients are measured with respect to, in words.

    >>> inputs_in_words(("flat_logits", "params"))
    'logits and parameters'
    """
    return " and ".join(dict.fromkeys(_WORDS.get(name, name) for name in inputs))


def measured_elsewhere(run: RunLog) -> dict[str, tuple[str, ...]]:
    """The terms whose gradients are measured at other inputs than most, with those inputs.

    At a tie, the inputs of the base loss count as the usual ones.
    """
    inputs = {name: term.inputs for name, term in run.terms.items() if len(term.pull) and term.inputs}
    counts = Counter(inputs.values())
    if len(counts) < 2:
        return {}
    common = max(counts, key=lambda names: (counts[names], names == inputs.get(BASE)))
    return {name: names for name, names in inputs.items() if names != common}
