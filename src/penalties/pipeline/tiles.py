"""The gradient of a large separable term, a few rows at a time: each piece is used while it is in the cache."""

import functools
from collections.abc import Mapping
from typing import Any

from .. import functional
from ..backends import Slope, owner
from ..errors import TermError, said
from .catalogue import OVER_CLASSES, SEPARABLE
from .combine import Gradients
from .inputs import lookup, reads
from .reading import NOTHING
from .term import Term, Weight

__all__ = ["in_tiles"]


def in_tiles(
    term: Term, inputs: Mapping[str, Any], gradients: Gradients, weight: Weight
) -> tuple[Any, Any, Mapping[str, Any]] | None:
    """A term's value, the norm of its gradient, and that at each input, with its gradient added to the others.

    None where the term has to be taken whole: it is no sum over rows, it is small, or its gradient is needed in one
    piece. No piece outlives the next, so that a term of a million elements needs a few megabytes beside the sum.
    """
    if type(weight) is not float or gradients.cosines or not _separable(term):
        return None
    targets, ops = gradients.targets, gradients.targets.ops
    arguments = [lookup(term.name, inputs, name) for name in term.positional]
    places = {name: place for place, name in enumerate(targets.names) if name in term.positional}
    inside = any(reads(wanted, name) and wanted != name for wanted in term.positional for name in targets.nests)
    twice = len(set(term.positional)) < len(arguments)
    if not places or inside or twice or any(owner(array) is not ops for array in arguments):
        return None
    shape, reduction = arguments[0].shape, term.reduction
    if any(array.shape != shape for array in arguments) or len(shape) < (2 if term.fn in OVER_CLASSES else 1):
        return None
    if reduction not in ("sum", "mean"):
        return None
    wanted = [index for index, name in enumerate(term.positional) if name in places]
    names = [term.positional[index] for index in wanted]
    scale = gradients.scale(weight)
    try:
        found = ops.add_gradients(
            functools.partial(term.call, **term.keywords),
            arguments,
            wanted,
            scale=scale,
            mean=reduction == "mean",
            sum_at=lambda index: gradients.loose.own(places[term.positional[index]], arguments[index]),
            weight=1.0 if scale is weight else weight,
            slope=_slope(term),
        )
    except Exception as error:
        raise TermError(term.name, f"raised {said(error)}") from error
    if found is None:
        return None
    value, norms = found
    each = dict(zip(names, norms, strict=True)) if len(targets.nests) > 1 else NOTHING
    return value, ops.norm(norms), each


def _separable(term: Term) -> bool:
    """Whether the term is a penalty of ours that may be a sum or mean over rows, without a mask that weighs them."""
    return (
        term.fn in SEPARABLE
        and term.plain
        and term.differentiable
        and "mask" not in term.keywords
        and term.keywords.get("center") != "mean"
    )


def _slope(term: Term) -> Slope | None:
    """The gradient of a term that is a norm, in closed form; what is clipped or moved has none here."""
    options = term.keywords
    if term.fn is functional.l1:
        return Slope(1.0, 0.0)
    if term.fn is functional.l2 and options.get("center") is None and options.get("clip") is None:
        return Slope(0.0, 2.0)
    if term.fn is functional.elastic_net:
        ratio = float(options.get("l1_ratio", 0.5))
        return Slope(ratio, 2 * (1 - ratio))
    if term.fn is functional.smooth_l1:
        delta = float(options.get("delta", 1.0))
        # Its reciprocal is a number in every dtype.
        return Slope(1.0, 0.0, delta) if 1e-30 < delta < 1e30 else None
    return None
