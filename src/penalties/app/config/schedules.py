"""Schedules in a config: the table of each kind, as `schedules.from_config` reads it.

A value that is left out is the weight of the term, or the learning rate, that the schedule belongs to; steps that are
left out are those of the run.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from .table import Table

__all__ = ["ScheduleTable"]

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
