"""Weights as functions of the step."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..backends import Backend, owner
from ..errors import OptionError
from ..functional.options import check_count, check_number, is_whole
from .kinds import is_row

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = [
    "Schedule",
    "apply",
    "chain",
    "constant",
    "cosine",
    "exponential",
    "linear",
    "piecewise",
    "product",
    "warmup",
    "weights",
]

Schedule: TypeAlias = Callable[[Any], Any]
"""From a step, counted from 0, to a weight. A step that is an array gives an array, inside a compiler too."""


def _number(function: str, option: str, value: Any) -> float:
    return check_number(function, option, value, "a finite number of at least 0", low=0.0)


@dataclass(frozen=True)
class constant:
    """Always the same.

    >>> from penalties import schedules
    >>> schedules.constant(0.5)(100)
    0.5
    """

    value: float

    def __post_init__(self) -> None:
        """Refuse what is no weight."""
        _number("constant", "value", self.value)

    def __call__(self, step: Any) -> Any:
        """The value, whatever the step."""
        return self.value


@dataclass(frozen=True)
class linear:
    """From `start` to `end` in that many steps: `start + (end − start) · step / max(steps − 1, 1)`, then `end`.

    >>> from penalties import schedules
    >>> ramp = schedules.linear(0.0, 1.0, steps=11)
    >>> ramp(0), ramp(5), ramp(10), ramp(99)
    (0.0, 0.5, 1.0, 1.0)
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        """Refuse what is no weight, and fewer steps than one."""
        _number("linear", "start", self.start)
        _number("linear", "end", self.end)
        check_count("linear", "steps", self.steps, 1)

    def __call__(self, step: Any) -> Any:
        """The weight at this step."""
        return self.start + (self.end - self.start) * _least(step / max(self.steps - 1, 1), 1.0)


@dataclass(frozen=True)
class warmup:
    """From 0 up to `value`: `value · step / steps`, and `value` from step `steps` on.

    >>> from penalties import schedules
    >>> rise = schedules.warmup(1.0, steps=5)
    >>> rise(0), rise(2), rise(5), rise(8)
    (0.0, 0.4, 1.0, 1.0)
    """

    value: float
    steps: int

    def __post_init__(self) -> None:
        """Refuse what is no weight; without steps it is there at once."""
        _number("warmup", "value", self.value)
        check_count("warmup", "steps", self.steps, 0)

    def __call__(self, step: Any) -> Any:
        """The weight at this step."""
        return self.value if self.steps == 0 else self.value * _least(step / self.steps, 1.0)


@dataclass(frozen=True)
class cosine:
    """From `start` to `end` along half a cosine in that many steps, as slowly at both ends; then `end`.

    >>> from penalties import schedules
    >>> fade = schedules.cosine(1.0, 0.0, steps=11)
    >>> fade(0), round(fade(5), 6), round(fade(10), 6)
    (1.0, 0.5, 0.0)
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        """Refuse what is no weight, and fewer steps than one."""
        _number("cosine", "start", self.start)
        _number("cosine", "end", self.end)
        check_count("cosine", "steps", self.steps, 1)

    def __call__(self, step: Any) -> Any:
        """The weight at this step."""
        part = _least(step / max(self.steps - 1, 1), 1.0)
        return self.end + (self.start - self.end) * 0.5 * (1.0 + _cos(math.pi * part))


@dataclass(frozen=True)
class exponential:
    """`value · rate^step`.

    >>> from penalties import schedules
    >>> decay = schedules.exponential(1.0, rate=0.5)
    >>> decay(0), decay(1), decay(2)
    (1.0, 0.5, 0.25)
    """

    value: float
    rate: float

    def __post_init__(self) -> None:
        """Refuse what is no weight, and a rate that is none."""
        _number("exponential", "value", self.value)
        _number("exponential", "rate", self.rate)

    def __call__(self, step: Any) -> Any:
        """The weight at this step."""
        return self.value * self.rate**step


@dataclass(frozen=True, init=False)
class piecewise:
    """A value from each given step on, and the first one before.

    >>> from penalties import schedules
    >>> phases = schedules.piecewise({0: 0.0, 100: 0.1, 500: 1.0})
    >>> phases(99), phases(100), phases(1000)
    (0.0, 0.1, 1.0)
    """

    points: tuple[tuple[int, float], ...]

    def __init__(self, values: Mapping[int, float]) -> None:
        """Sort by step; refuse what is no step or no weight."""
        if not isinstance(cast("object", values), Mapping) or not values:
            raise OptionError("piecewise", "values", values, "a mapping from steps to weights, not empty")
        for step, value in values.items():
            check_count("piecewise", "step", step, 0)
            _number("piecewise", f"the value at {step}", value)
        object.__setattr__(self, "points", tuple(sorted(values.items())))

    def __call__(self, step: Any) -> Any:
        """The weight at this step."""
        value: Any = self.points[0][1]
        for start, here in self.points[1:]:
            value = _choose(step >= start, here, value)
        return value


@dataclass(frozen=True, init=False)
class chain:
    """Schedules one after another, each for its number of steps and counted from its own beginning; the last stays.

    >>> from penalties import schedules
    >>> rise, hold, fade = schedules.warmup(1.0, 10), schedules.constant(1.0), schedules.exponential(1.0, 0.5)
    >>> plan = schedules.chain((rise, 10), (hold, 90), fade)
    >>> plan(5), plan(50), plan(101)
    (0.5, 1.0, 0.5)
    """

    parts: tuple[tuple[Schedule, int], ...]
    last: Schedule

    def __init__(self, *parts: tuple[Schedule, int] | Schedule) -> None:
        """Pairs of a schedule and its steps, and a last schedule without."""
        if not parts or not callable(parts[-1]):
            raise OptionError("chain", "parts", parts, "pairs (schedule, steps), and a last schedule without steps")
        for part in parts[:-1]:
            if not (is_row(part) and len(part) == 2 and callable(part[0])):
                raise OptionError("chain", "parts", part, "a pair (schedule, steps)")
            check_count("chain", "steps", part[1], 1)
        object.__setattr__(self, "parts", parts[:-1])
        object.__setattr__(self, "last", parts[-1])

    def __call__(self, step: Any) -> Any:
        """The weight at this step."""
        starts = [0]
        for _, steps in self.parts:
            starts.append(starts[-1] + steps)
        schedules = [*[schedule for schedule, _ in self.parts], self.last]
        value: Any = schedules[0](step) if owner(step) is not None or step < (starts[1:] or [math.inf])[0] else None
        for start, schedule in zip(starts[1:], schedules[1:], strict=True):
            if owner(step) is None and step < start:
                break
            value = _choose(step >= start, schedule(_most(step - start, 0)), value)
        return value


@dataclass(frozen=True, init=False)
class product:
    """The product of schedules, as of a warm-up and a decay.

    >>> from penalties import schedules
    >>> plan = schedules.product(schedules.warmup(1.0, 10), schedules.exponential(0.5, 0.9))
    >>> plan(0), round(plan(5), 6)
    (0.0, 0.147623)
    """

    schedules: tuple[Schedule, ...]

    def __init__(self, *schedules: Schedule) -> None:
        """At least one schedule."""
        if not schedules or not all(callable(schedule) for schedule in schedules):
            raise OptionError("product", "schedules", schedules, "schedules: functions of the step")
        object.__setattr__(self, "schedules", schedules)

    def __call__(self, step: Any) -> Any:
        """The weight at this step."""
        value = self.schedules[0](step)
        for schedule in self.schedules[1:]:
            value = value * schedule(step)
        return value


def weights(schedules: Mapping[str, Schedule], step: Any) -> dict[str, Any]:
    """`{name: weight}` at this step, for `pipeline(..., weights=…)`: nothing is compiled again when it changes.

    >>> from penalties import schedules
    >>> schedules.weights({"kl": schedules.warmup(0.1, 10)}, 5)
    {'kl': 0.05}
    """
    if owner(step) is None and (not is_whole(step) or step < 0):
        raise OptionError("schedules", "step", step, "a whole number of at least 0, or a 0-d array")
    return {name: schedule(step) for name, schedule in schedules.items()}


def apply(pipeline: "Pipeline", schedules: Mapping[str, Schedule], step: Any) -> "Pipeline":
    """The pipeline with the weights that its schedules give at this step.

    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.l1), pn.Term(pn.l2)])
    >>> pn.schedules.apply(pipeline, {"l1": pn.schedules.linear(0.0, 0.1, steps=11)}, 5).weights
    {'l1': 0.05, 'l2': 1.0}
    """
    return pipeline.with_weights(weights(schedules, step))


# The few operations that differ between numbers and arrays.


def _least(value: Any, bound: float) -> Any:
    ops = owner(value)
    return min(value, bound) if ops is None else ops.clip(value, None, bound)


def _most(value: Any, bound: int) -> Any:
    ops = owner(value)
    return max(value, bound) if ops is None else ops.clip(value, bound, None)


def _cos(value: Any) -> Any:
    ops = owner(value)
    return math.cos(value) if ops is None else ops.cos(value)


def _choose(condition: Any, yes: Any, no: Any) -> Any:
    ops: Backend | None = owner(condition)
    return (yes if condition else no) if ops is None else ops.where(condition, yes, no)
