"""Which terms of an objective follow from parts of a batch, and how; and why others need the whole batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ..functional.penalty import Facts, facts_of
from ..pipeline import Pipeline, Term
from ..pipeline.binding import Enclosing
from ..pipeline.wrappers.running import Average, Scaled
from ..pipeline.wrappers.wrapper import Wrapper
from .packing import FLAT, LOGITS, PACKED, Unpacked, is_local, likeliest_of
from .shares import Known, Merge, Shares, positions, sequences, shares_of

__all__ = ["Rule", "Separation", "Whole", "is_ambiguous", "reads_likeliest", "separation_of"]

Array = np.ndarray[Any, Any]

_MASK: Final = "mask"
_ELSEWHERE: Final = {
    "inline": "asynchronously",
    "async": "asynchronously",
    "thread": "in a thread",
    "process": "in a process",
    "ray": "on Ray",
}


class Rule(NamedTuple):
    """How a term over a batch follows from the same term over parts of it."""

    mean: bool
    """Whether it is a mean over the batch rather than a sum."""
    counts: Callable[[Known], Array]
    """How much each datum counts in a mean."""
    metrics: Mapping[str, Merge] | None
    """How its metrics are merged; None if it must not have any."""
    together: int = 1
    """The number of data that must stay together."""
    mask: str | None = None
    """The mask that it reads: that of the batch, or a reference."""


class Whole(NamedTuple):
    """Why a term needs the whole batch, and what to do about it."""

    why: str
    fix: str


class Separation(NamedTuple):
    """The terms of an objective, by how they follow from parts of a batch."""

    once: frozenset[str]
    """Those that read nothing which the model computes from the batch: they are evaluated once."""
    rules: Mapping[str, Rule]
    whole: Mapping[str, Whole]
    """Those that need the whole batch."""

    @property
    def together(self) -> int:
        """The number of data that must stay together."""
        return int(np.lcm.reduce([rule.together for rule in self.rules.values()] or [1]))


def separation_of(pipeline: Pipeline, references: Mapping[str, bool], *, candidates: bool) -> Separation:
    """How the terms of an objective, which read packed arrays, follow from parts of a batch.

    `references` says of each whether it has one number per target; `candidates` that positions have several targets.
    """
    once: set[str] = set()
    rules: dict[str, Rule] = {}
    whole: dict[str, Whole] = {}
    for term in pipeline.all_terms:
        if not term.enabled:
            continue
        if not any(_is_computed(name) for name in term.inputs.values()):
            once.add(term.name)
            continue
        found = _rule(term, references, candidates)
        if isinstance(found, Rule):
            rules[term.name] = found
        else:
            whole[term.name] = found
    return Separation(frozenset(once), rules, whole)


def reads_likeliest(term: Term) -> bool:
    """Whether a term reads the model's log-probabilities of the likeliest tokens of a reference."""
    return any(likeliest_of(name) is not None for name in term.inputs.values())


def _is_computed(name: str) -> bool:
    """Whether an input is what a model computes from a batch."""
    if name == PACKED or name.endswith(LOGITS) or likeliest_of(name) is not None:
        return True
    return is_local(name) and name != "params"


def _rule(term: Term, references: Mapping[str, bool], candidates: bool) -> Rule | Whole:
    inner = term.fn.term if isinstance(term.fn, Unpacked) else term
    # Of the likeliest tokens of a reference, every position has several too.
    candidates = candidates or reads_likeliest(term)
    if isinstance(inner.fn, Wrapper) and not isinstance(inner.fn, Average | Scaled):
        return Whole(f"{inner.fn.title} goes around it", "accept the second forward")
    if isinstance(inner.fn, Enclosing) or inner.takes_state:
        return Whole("it keeps state", "leave the state out")
    if term.runs != "inline" or term.asynchronous:
        return Whole(f"it runs {_ELSEWHERE[term.runs]}", 'use runs = "inline"')
    if term.on_error == "skip":
        return Whole("it may be skipped, which is known only after all parts", 'use on_error = "raise"')
    if inner.separable is False:
        return Whole("it has separable = false", "remove that if it is a sum or mean over tokens or sequences")
    facts, shares = facts_of(inner.fn), shares_of(inner.fn)
    if facts is None and shares is None:
        return _of_function(inner)
    mask = inner.inputs.get(_MASK)
    mask = None if mask is None else mask.removeprefix(FLAT)
    if mask is not None and mask != _MASK and not references.get(mask, False):
        return Whole(f'its mask, "{mask}", is not known before the forward', "use the mask of the batch")
    if facts is not None:
        return _of_penalty(inner, facts, mask, references, candidates)
    assert shares is not None, "one of them is"
    return _of_loss(inner, shares, mask, candidates)


def _of_penalty(
    term: Term, facts: Facts, mask: str | None, references: Mapping[str, bool], candidates: bool
) -> Rule | Whole:
    if facts.draws or not facts.separable(term.options):
        options = " with these options" if facts.rows else ""
        return Whole(f"it is not a sum or mean over tokens{options}", "accept the second forward, or use another term")
    read = [name for parameter, name in term.inputs.items() if parameter not in (_MASK, *facts.labels)]
    if any(references.get(name.removeprefix(FLAT)) is False for name in read):
        return Whole("it compares sequences with tokens", "accept the second forward")
    if facts.over_vectors(term.options) and not all(_has_vectors(name, candidates) for name in read):
        why = "with one number for each token it works on whole sequences"
        return Whole(why, 'read "logits", or use another term')
    mean = term.reduction == "mean"
    if mean and facts.weights is not None:
        return Whole("its mean depends on its labels", 'use options = { reduction = "sum" }')
    return Rule(mean, positions, None, mask=mask)


def _has_vectors(name: str, candidates: bool) -> bool:
    """Whether an input has a vector for each position."""
    return candidates or name.endswith(LOGITS) or is_local(name)


def _of_loss(term: Term, shares: Shares, mask: str | None, candidates: bool) -> Rule | Whole:
    for option, values in shares.coupled.items():
        if term.options.get(option) in values:
            return Whole(f'{option} = "{term.options[option]}" couples all tokens', f"use another {option}")
    if mask not in (None, _MASK) and candidates:
        return Whole(f'its mask, "{mask}", counts candidates', "use the mask of the batch")
    mean = (term.reduction or shares.reduction) == "mean"
    return Rule(mean, shares.counts, shares.metrics, shares.together, mask)


def _of_function(term: Term) -> Rule | Whole:
    if not term.separable:
        fix = "set separable = true if it is a sum or mean over tokens or sequences, and scope says which"
        return Whole("it is a function of the whole batch", fix)
    counts = sequences if term.separable == "sequences" else positions
    # Whatever its parameter is called.
    masked = any(name.removeprefix(FLAT) == _MASK for name in term.inputs.values())
    return Rule(term.summed == "mean", counts, None, mask=_MASK if masked else None)


def is_ambiguous(term: Term) -> bool:
    """Whether your own mean over rows does not say over which: it reads one array per datum."""
    inner = term.fn.term if isinstance(term.fn, Unpacked) else term
    packed: Sequence[str] = [name for name in inner.inputs.values() if name.startswith(FLAT)]
    return inner.separable is True and inner.summed == "mean" and len(packed) < len(inner.inputs)
