"""A term over rows, some rows at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..backends import Backend, owner
from ..errors import TermError
from ..functional.penalty import facts_of
from ..functional.reduction import weighted_mean
from .term import Term

__all__ = ["in_chunks"]


def in_chunks(term: Term, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """The sum or mean over all rows, from as many rows at a time as the term says.

    Every array among the inputs is cut along its first axis. A mean counts each piece by its rows, or by how much they
    count: the sum of its mask, or what the penalty says.
    """
    options = {key: value for key, value in keywords.items() if owner(value) is None or key not in term.inputs}
    cut = {key: value for key, value in keywords.items() if key not in options}
    parts = [*arguments, *cut.values()]
    indices = [index for index, part in enumerate(parts) if owner(part) is not None]
    if not indices:
        raise TermError(term.name, "chunk= needs an array with rows among its inputs; got none")
    arrays = [parts[index] for index in indices]
    rows = {tuple(array.shape[:1]) for array in arrays}
    if len(rows) > 1 or () in rows:
        shapes = ", ".join(str(tuple(array.shape)) for array in arrays)
        raise TermError(term.name, f"chunk= needs inputs with the same number of rows; got shapes {shapes}")
    facts = facts_of(term.fn)
    if facts is not None and facts.classes and len(arrays[0].shape) < 2:
        raise TermError(term.name, f"chunk= cuts rows; its input of shape {tuple(arrays[0].shape)} has one axis only")
    ops: Backend = owner(arrays[0])  # pyright: ignore[reportAssignmentType]
    count = len(arrays[0])
    mean = term.reduction == "mean"
    # Weights are added up with the digits of the values, which a mask of fewer does not have.
    wide, *others = [ops.upcast(term.name, array[:1]) for array in arrays]
    for other in others:
        wide = other if other.dtype.itemsize > wide.dtype.itemsize else wide

    def weight(*positional: Any, **named: Any) -> Any:
        """How much some rows count together; None where they count by their number."""
        if facts is not None and facts.weights is not None:
            weights = facts.weights(*positional, **facts.options(named))
        else:
            weights = ops.upcast(term.name, named["mask"]) if "mask" in cut else None
        return None if weights is None else ops.sum(ops.cast(weights, wide))

    whole = weight(*arguments, **keywords) if mean else None

    def piece(*cuts: Any) -> Any:
        given = list(parts)
        for index, value in zip(indices, cuts, strict=True):
            given[index] = value
        positional = given[: len(arguments)]
        named = dict(zip(cut, given[len(arguments) :], strict=True))
        value = term.call(*positional, **options, **named)
        if owner(value) is None or len(value.shape):
            raise TermError(term.name, "chunk= combines 0-d values; expected neither metrics nor state nor a vector")
        if not mean:
            return value
        if whole is None:
            return value * (len(cuts[0]) / count)
        return weighted_mean(ops, value * weight(*positional, **options, **named), whole)

    if count == 0:
        return piece(*arrays) if not mean else term.call(*arguments, **keywords)
    return ops.sum_over_rows(piece, arrays, term.chunk or count)
