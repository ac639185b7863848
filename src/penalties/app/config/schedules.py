"""Schedules in a config: the table of each kind, and the schedule that it makes.

A value that is left out is the weight of the term, or the learning rate, that the schedule belongs to; steps that are
left out are those of the run.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ...pipeline import schedules
from .table import Table

__all__ = ["ScheduleTable", "made"]

_Value: TypeAlias = Annotated[float, Field(ge=0)]


class Constant(Table):
    """Always the same."""

    kind: Literal["constant"]
    value: _Value | None = None
    """The value; the weight where it is left out."""


class Linear(Table):
    """Straight from one value to another, then that one."""

    kind: Literal["linear"]
    start: _Value = 0.0
    """The value at step 0."""
    end: _Value | None = None
    """The value at the last of the steps; the weight where it is left out."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """How many steps it takes; those of the run where it is left out."""


class Warmup(Table):
    """From 0 up to a value, then that one."""

    kind: Literal["warmup"]
    steps: Annotated[int, Field(ge=0)]
    """The step from which on the value is reached."""
    value: _Value | None = None
    """The value; the weight where it is left out."""


class Cosine(Table):
    """From one value to another along half a cosine, then that one."""

    kind: Literal["cosine"]
    start: _Value | None = None
    """The value at step 0; the weight where it is left out."""
    end: _Value = 0.0
    """The value at the last of the steps."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """How many steps it takes; those of the run where it is left out."""


class Exponential(Table):
    """Multiplied by a rate at each step."""

    kind: Literal["exponential"]
    rate: _Value
    """What the value is multiplied by at each step."""
    value: _Value | None = None
    """The value at step 0; the weight where it is left out."""


class Piecewise(Table):
    """A value from each given step on."""

    kind: Literal["piecewise"]
    values: Annotated[dict[Annotated[str, Field(pattern=r"^(0|[1-9][0-9]*)$")], _Value], Field(min_length=1)]
    """Values by the step from which on they hold, as `{ 0 = 0.0, 100 = 0.1 }`."""


class Product(Table):
    """The product of schedules, as of a warm-up and a decay."""

    kind: Literal["product"]
    schedules: Annotated[list["ScheduleTable"], Field(min_length=1)]
    """The factors. What the first leaves out is the weight, what the others leave out is 1."""


class Part(Table):
    """A schedule, and for how long it holds."""

    schedule: "ScheduleTable"
    """The schedule, counted from its own beginning."""
    steps: Annotated[int, Field(ge=1)]
    """How many steps it holds for."""


class Chain(Table):
    """Schedules one after another."""

    kind: Literal["chain"]
    parts: Annotated[list[Part], Field(min_length=1)]
    """Schedules, and for how long each of them holds."""
    last: "ScheduleTable"
    """The schedule that holds after them."""


ScheduleTable: TypeAlias = Annotated[
    Constant | Linear | Warmup | Cosine | Exponential | Piecewise | Product | Chain, Field(discriminator="kind")
]
"""A schedule, by its kind."""

for _table in (Product, Part, Chain):
    _table.model_rebuild()


def made(table: ScheduleTable, weight: float, steps: int) -> schedules.Schedule:
    """The schedule that a table describes, for this weight and a run of that many steps.

    >>> made(Warmup(kind="warmup", steps=10), weight=0.5, steps=100)
    warmup(value=0.5, steps=10)
    """
    return _MAKERS[type(table)](table, weight, steps)


def _or(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


_MAKERS: dict[type[Table], Callable[[Any, float, int], schedules.Schedule]] = {
    Constant: lambda table, weight, steps: schedules.constant(_or(table.value, weight)),
    Linear: lambda table, weight, steps: schedules.linear(table.start, _or(table.end, weight), _or(table.steps, steps)),
    Warmup: lambda table, weight, steps: schedules.warmup(_or(table.value, weight), table.steps),
    Cosine: lambda table, weight, steps: schedules.cosine(_or(table.start, weight), table.end, _or(table.steps, steps)),
    Exponential: lambda table, weight, steps: schedules.exponential(_or(table.value, weight), table.rate),
    Piecewise: lambda table, weight, steps: schedules.piecewise(
        {int(step): value for step, value in table.values.items()}
    ),
    Product: lambda table, weight, steps: schedules.product(
        *[made(factor, 1.0 if place else weight, steps) for place, factor in enumerate(table.schedules)]
    ),
    Chain: lambda table, weight, steps: schedules.chain(
        *[(made(part.schedule, weight, part.steps), part.steps) for part in table.parts],
        made(table.last, weight, steps),
    ),
}
