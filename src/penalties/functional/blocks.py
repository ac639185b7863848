"""Penalties over `Logits`: those on distributions compute them a block of rows at a time."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar, cast

from ..arrays import Logits
from ..backends import Backend, backend_of, no_array, owner
from ..errors import OptionError, ShapeError
from .options import check_choice, check_same_shape
from .reduction import REDUCTIONS, check_mask, hide, weighted_mean

__all__ = ["DISTRIBUTIONS", "block_rows", "counted", "over_logits", "rows_of"]

P = ParamSpec("P")
R = TypeVar("R")

DISTRIBUTIONS: Final = ("p", "q")
"""The parameters of a penalty that are distributions over the last axis, where it has the fact `distribution`."""

_FEWEST: Final = 64
"""Rows of a block: the output layer is read once for each, which takes longer than the product of fewer rows."""


def block_rows(ops: Backend, logits: Logits) -> int:
    """How many rows of these logits are computed at a time: about as many in each block, so that none is small."""
    *leading, classes = logits.shape
    most = max(_FEWEST, ops.block(logits.hidden) // max(classes, 1))
    count = max(math.prod(leading), 1)
    even = -(-count // -(-count // most))
    return -(-even // _FEWEST) * _FEWEST


def over_logits(
    fn: Callable[P, R], defaults: Mapping[str, Any], weights: Callable[..., Any] | None, *, distribution: bool
) -> Callable[P, R]:
    """The penalty, that takes `Logits` in place of arrays, too: in blocks, or as the array that they stand for.

    `weights` says how much each position counts in a mean, as the fact of that name.
    """
    names = [p.name for p in inspect.signature(fn).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not any([isinstance(x, Logits) for x in (*args, *kwargs.values())]):  # noqa: C419 (called for every term)
            return fn(*args, **kwargs)
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        if distribution:
            return cast("R", _in_blocks(fn, {**defaults, **given}, weights))
        untyped: Any = fn
        return untyped(**{key: x.materialize() if isinstance(x, Logits) else x for key, x in given.items()})

    return call


def counted(weights: Callable[..., Any] | None, given: Mapping[str, Any]) -> Any:
    """How much each position counts in a mean of a penalty with these arguments; None where all count alike."""
    if weights is None:
        return given.get("mask")
    # It asks for the positions alone, which hidden states have as well.
    return weights(**{key: x.hidden if isinstance(x, Logits) else x for key, x in given.items()})


def _in_blocks(fn: Callable[..., Any], given: dict[str, Any], weights: Callable[..., Any] | None) -> Any:
    """A penalty on distributions, from its values at all rows, of which a block at a time is computed."""
    name = fn.__name__
    for key, x in given.items():
        if isinstance(x, Logits) and key not in DISTRIBUTIONS:
            raise no_array(name, key, x)
    reduction, mask = given["reduction"], given["mask"]
    check_choice(name, "reduction", reduction, REDUCTIONS)
    if not given["logits"] and given["temperature"] == 1:
        raise OptionError(name, "logits", given["logits"], "True: Logits are unnormalised scores")
    read = {key: given[key] for key in DISTRIBUTIONS if key in given}
    ops = backend_of(name, mask=mask, **{key: x.hidden if isinstance(x, Logits) else x for key, x in read.items()})
    if len(read) == 2:
        check_same_shape(name, **read)
    first = next(iter(read.values()))
    leading = tuple(first.shape[:-1])
    check_mask(name, ops, mask, leading, f"the shape of {next(iter(read))} without its last axis")
    shares = counted(weights, given)
    found = rows_of(ops, leading, {**given, "reduction": "none"}, fn, shares)
    if reduction == "none":
        return found
    total = ops.sum(found)
    if reduction == "sum":
        return total
    if shares is None:
        return total / max(math.prod(leading), 1)
    return weighted_mean(ops, total, ops.sum(ops.cast(shares, found)))


def rows_of(
    ops: Backend, leading: tuple[int, ...], given: Mapping[str, Any], fn: Callable[..., Any], shares: Any = None
) -> Any:
    """`fn(**given)`, which has an entry for each position, from a block of positions at a time.

    Of the arguments, hidden states of logits, arrays that have the positions as their first axes, and the mask are cut.
    `shares` says how much each position counts.
    """
    count = math.prod(leading)
    lazy = [x for x in given.values() if isinstance(x, Logits)]
    cut: dict[str, Any] = {}
    for key, x in given.items():
        array = x.hidden if isinstance(x, Logits) else x
        if owner(array) is None:
            continue
        if tuple(array.shape[: len(leading)]) != leading:
            raise ShapeError(
                f"{fn.__name__}: {key} has shape {tuple(array.shape)}; expected its first axes to be {leading}"
            )
        cut[key] = array.reshape(count, *array.shape[len(leading) :])
        if isinstance(x, Logits) and shares is not None:
            # NaN in padding would reach the gradient of the weight.
            cut[key] = hide(ops, cut[key], shares.reshape(count))
    rest = {key: x for key, x in given.items() if key not in cut}

    def values(*pieces: Any) -> Any:
        arguments = dict(zip(cut, pieces, strict=True))
        for key, x in given.items():
            if isinstance(x, Logits):
                arguments[key] = x.with_hidden(arguments[key]).materialize()
        return fn(**arguments, **rest)

    pieces = list(cut.values())
    size = min(block_rows(ops, x) for x in lazy)
    found = ops.map_rows(values, pieces, size) if count else values(*pieces)
    return found.reshape((*leading, *found.shape[1:]))
