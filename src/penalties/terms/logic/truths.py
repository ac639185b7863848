"""Truth values of variables, from probabilities or logits, as logarithms that keep their digits."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from ...backends import Backend, backend_of
from ...errors import OptionError, ShapeError, did_you_mean
from ...functional.options import check_same_shape
from ...functional.reduction import check_mask, hide
from ..probabilities import LARGEST, log_sigmoids, probability_of

__all__ = ["Degree", "Truth", "add_logs", "by_name", "check_names", "truth_of"]

T = TypeVar("T", bound=tuple[Any, ...])


class Truth(NamedTuple):
    """How likely something is to be true, and to be false."""

    log_true: Any
    log_false: Any
    possible: Any
    """Where the probability of true is above 0."""
    refutable: Any
    """Where the probability of false is above 0."""


class Degree(NamedTuple):
    """A truth value between 0 and 1."""

    probability: Any


def truth_of(function: str, ops: Backend, x: Any, *, logits: bool) -> Truth:
    """The truth values of an array of probabilities or logits.

    The logarithm of a probability of 0 is that of a very small number instead. So the slope of a sum of products in
    that probability is found all the same, and a sum that has others does not change. `possible` says where it is 0.
    """
    if logits:
        pair = log_sigmoids(ops, x)
        return Truth(pair[..., 0], pair[..., 1], ~(x < -LARGEST), ~(x > LARGEST))
    p = probability_of(function, ops, x, logits=False)
    return Truth(_log(ops, p), _log(ops, 1 - p), ~(p == 0), ~(p == 1))


def _log(ops: Backend, x: Any) -> Any:
    smallest = ops.limits(x)[0]
    fixed = ops.stop_gradient(x)
    # So small that sums lose it, and so large that neither one over it nor what is divided by it leaves the range.
    return ops.log(x + ops.where(fixed < smallest, smallest**0.75 - fixed, 0.0))


def add_logs(ops: Backend, a: Any, b: Any) -> Any:
    """`log(eᵃ + eᵇ)` of finite numbers."""
    fixed, other = ops.stop_gradient(a), ops.stop_gradient(b)
    largest = ops.where(fixed > other, fixed, other)
    return largest + ops.log(ops.exp(a - largest) + ops.exp(b - largest))


def check_names(function: str, option: str, names: Any) -> tuple[str, ...]:
    """Names of variables: different identifiers."""
    found = tuple(cast("Iterable[Any]", names)) if isinstance(names, Iterable) and not isinstance(names, str) else ()
    if not found or len(set(found)) < len(found) or not all(isinstance(n, str) and n.isidentifier() for n in found):
        raise OptionError(function, option, cast("Any", names), 'different names, such as ["rain", "wet"]')
    return found


def by_name(
    function: str, p: Any, variables: Any, needed: Iterable[str], mask: Any, convert: Callable[[Backend, Any], T]
) -> tuple[Backend, dict[str, T], Any]:
    """What `convert` makes of each variable, a tuple of arrays, and the mask.

    `p` is an array with a last axis of variables, which are then named, or a mapping of arrays.
    """
    if isinstance(p, Mapping):
        arrays = dict(cast("Mapping[str, Any]", p))
        if variables is not None:
            raise OptionError(function, "variables", variables, "None: p is a mapping, which has the names itself")
        _check_known(function, needed, tuple(arrays))
        ops = backend_of(function, **{f"p[{name!r}]": array for name, array in arrays.items()}, mask=mask)
        first, like = next(iter(arrays.items()))
        for name, array in arrays.items():
            if array.shape != like.shape:
                check_same_shape(function, **{f"p[{first!r}]": like, f"p[{name!r}]": array})
        mask = check_mask(function, ops, mask, tuple(like.shape), f"the shape of p[{first!r}]")
        return ops, {n: convert(ops, hide(ops, ops.upcast(function, arrays[n]), mask)) for n in needed}, mask
    ops = backend_of(function, p=p, mask=mask)
    if variables is None:
        raise OptionError(function, "variables", None, "names for the last axis of p, or a mapping of arrays as p")
    names = check_names(function, "variables", variables)
    if len(p.shape) == 0 or p.shape[-1] != len(names):
        raise ShapeError(f"{function}: p has shape {tuple(p.shape)}; expected a last axis of {len(names)} variables")
    _check_known(function, needed, names)
    mask = check_mask(function, ops, mask, tuple(p.shape[:-1]), "the shape of p without its last axis")
    whole = convert(ops, hide(ops, ops.upcast(function, p), mask))
    index = {name: column for column, name in enumerate(names)}
    # All columns are converted at once, and then taken apart.
    of_column: Any = type(whole)
    return ops, {n: of_column(*[part[..., index[n]] for part in whole]) for n in needed}, mask


def _check_known(function: str, needed: Iterable[str], known: tuple[str, ...]) -> None:
    for name in needed:
        if name not in known:
            raise OptionError(function, "rules", name, f"variables among {', '.join(known)}{did_you_mean(name, known)}")
