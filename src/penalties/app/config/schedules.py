"""Schedules in a config: the table of each kind, as `schedules.from_config` reads it.

The default value is the weight of the term, or the learning rate, that the schedule belongs to; the default number of
steps is that of the run.
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
    """The value; by default the weight."""


class Linear(Table):
    """A straight line from one value to another, then constant."""

    kind: Literal["linear"]
    start: _Value = 0.0
    """The value at the first step."""
    end: _Value | None = None
    """The value at the last of the steps; by default the weight."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """How many steps it takes; by default those of the run."""


class Warmup(Table):
    """From 0 up to a value, then constant."""

    kind: Literal["warmup"]
    steps: Annotated[int, Field(ge=0)]
    """The number of steps after which the value is reached."""
    value: _Value | None = None
    """The value; by default the weight."""


class Cosine(Table):
    """From one value to another along half a cosine, then constant."""

    kind: Literal["cosine"]
    start: _Value | None = None
    """The value at the first step; by default the weight."""
    end: _Value = 0.0
    """The value at the last of the steps."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """How many steps it takes; by default those of the run."""


class Exponential(Table):
    """A value that is multiplied by a rate at each step."""

    kind: Literal["exponential"]
    rate: _Value
    """The factor at each step."""
    value: _Value | None = None
    """The value at the first step; by default the weight."""


class Piecewise(Table):
    """A new value from each given step on."""

    kind: Literal["piecewise"]
    values: Annotated[dict[Annotated[str, Field(pattern=r"^(0|[1-9][0-9]*)$")], _Value], Field(min_length=1)]
    """Values by the number of finished steps from which they apply, such as `{ 0 = 0.0, 100 = 0.1 }`."""


class Product(Table):
    """The product of schedules, such as a warm-up and a decay."""

    kind: Literal["product"]
    schedules: Annotated[list["ScheduleTable"], Field(min_length=1)]
    """The factors. The default value is the weight in the first, and 1 in the others."""


class Part(Table):
    """A schedule, and how long it applies."""

    schedule: "ScheduleTable"
    """The schedule, whose first step is the first of its part."""
    steps: Annotated[int, Field(ge=1)]
    """How many steps it applies."""


class Chain(Table):
    """Schedules one after another."""

    kind: Literal["chain"]
    parts: Annotated[list[Part], Field(min_length=1)]
    """Schedules, and how long each applies."""
    last: "ScheduleTable"
    """The schedule after them."""


ScheduleTable: TypeAlias = Annotated[
    Constant | Linear | Warmup | Cosine | Exponential | Piecewise | Product | Chain, Field(discriminator="kind")
]
"""A schedule, by its kind."""

for _table in (Product, Part, Chain):
    _table.model_rebuild()
