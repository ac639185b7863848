"""How unequal the rates of groups are, as one number."""

from typing import Any, Final, Literal, TypeAlias

from ...backends import Backend
from ...functional.vectors import norm
from .members import Rates

__all__ = ["VIOLATIONS", "Violation", "gap", "seen", "violation_of"]

Violation: TypeAlias = Literal["max", "mean", "norm", "ratio", "relative"]

VIOLATIONS: Final = ("max", "mean", "norm", "ratio", "relative")


def seen(ops: Backend, rates: Rates) -> Any:
    """How many groups have rows."""
    return ops.sum(ops.cast(rates.present, rates.of))


def gap(ops: Backend, rates: Rates) -> Any:
    """The largest difference between two groups that have rows; 0 with fewer than two."""
    return _of_two(ops, rates, _largest(ops, rates) - _smallest(ops, rates))


def violation_of(ops: Backend, rates: Rates, how: Violation) -> Any:
    """How unequal the rates are; 0 with fewer than two groups that have rows."""
    if how == "max":
        return gap(ops, rates)
    differences = ops.where(rates.present, rates.of - rates.overall, 0.0)
    if how == "norm":
        return _of_two(ops, rates, norm(ops, differences))
    if how == "ratio":
        largest = _largest(ops, rates)
        none = largest == 0
        return _of_two(ops, rates, ops.where(none, 0.0, 1 - _smallest(ops, rates) / ops.where(none, 1.0, largest)))
    number = seen(ops, rates)
    mean = ops.sum(ops.abs(differences)) / ops.where(number == 0, 1.0, number)
    if how == "relative":
        none = rates.overall == 0
        mean = ops.where(none, 0.0, mean / ops.where(none, 1.0, rates.overall))
    return _of_two(ops, rates, mean)


def _of_two(ops: Backend, rates: Rates, value: Any) -> Any:
    return ops.where(seen(ops, rates) > 1, value, 0.0)


def _largest(ops: Backend, rates: Rates) -> Any:
    return ops.amax(ops.where(rates.present, rates.of, 0.0))


def _smallest(ops: Backend, rates: Rates) -> Any:
    # Rates are at most 1.
    return 1 - ops.amax(ops.where(rates.present, 1 - rates.of, 0.0))
