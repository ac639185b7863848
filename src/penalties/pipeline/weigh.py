"""The coefficients of a call: what each term's value and gradient are multiplied by in the sum."""

from collections.abc import Mapping
from typing import Any, cast

from ..errors import OptionError, unknown_term
from .term import Term, Weight, check_weight, weight_at

__all__ = ["check_weights", "weight_of"]


def check_weights(names: tuple[str, ...], weights: Mapping[str, Weight] | None) -> Mapping[str, Weight]:
    """The weights that a call overrides, by the names of terms."""
    if weights is None:
        return {}
    if not isinstance(cast("object", weights), Mapping):
        raise OptionError("pipeline", "weights", weights, "a mapping from the names of terms to weights")
    for name in weights:
        if name not in names:
            raise unknown_term("weights", name, names)
    return {name: check_weight(name, weight) for name, weight in weights.items()}


def weight_of(term: Term, overrides: Mapping[str, Weight], step: Any) -> Weight:
    """The weight of a term in this call: the one passed to the call, or its own at this step."""
    return overrides[term.name] if term.name in overrides else weight_at(term, step)
