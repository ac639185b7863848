"""Strengths of what is attached to an optimizer: numbers, or functions of the step."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from ..backends import owner
from ..errors import OptionError
from ..functional.options import check_number
from ..pipeline.schedules import Schedule

__all__ = ["Strength", "strength", "strengths"]

Strength: TypeAlias = float | Schedule
"""A number of at least 0, or a function from the step, counted from 0, to one."""

_EXPECTED: Final = "a finite number of at least 0, or a function of the step that returns one"


def strength(function: str, option: str, value: Strength) -> Callable[[Any], Any]:
    """The strength as a function of the step. Numbers are checked at once, those of a schedule at each step.

    So are arrays without axes, except those that a compiler traces.
    """

    def checked(given: Any) -> Any:
        ops = owner(given)
        if ops is not None and (given.shape or ops.tracing(given)):
            return given
        number = check_number(function, option, given if ops is None else given.item(), _EXPECTED, low=0.0)
        return number if ops is None else given

    if callable(value):
        return lambda step: checked(value(step))
    number = checked(value)
    return lambda step: number


def strengths(function: str, **given: Strength | None) -> Mapping[str, Callable[[Any], Any]]:
    """Those of several strengths that are not None, of which there must be one, as functions of the step."""
    found = {option: strength(function, option, value) for option, value in given.items() if value is not None}
    if not found:
        raise OptionError(function, ", ".join(given), None, "a strength for at least one of them")
    return found
