"""Weights as functions of the step."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from ..backends import Backend, owner
from ..errors import OptionError, did_you_mean
from ..functional.options import check_count, check_number, is_whole
from .kinds import is_mapping, is_row

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = [
    "Schedule",
    "apply",
    "chain",
    "constant",
    "cosine",
    "exponential",
    "from_config",
    "linear",
    "piecewise",
    "product",
    "to_config",
    "warmup",
    "weights",
]

Schedule: TypeAlias = Callable[[Any], Any]
"""A function from the step, counted from 0, to a weight. Where the step is an array, the weight is one too."""


def _number(function: str, option: str, value: Any) -> float:
    return check_number(function, option, value, "a finite number of at least 0", low=0.0)


@dataclass(frozen=True)
class constant:
    """The same weight at every step.

    >>> from penalties import schedules
    >>> schedules.constant(0.5)(100)
    0.5
    """

    value: float

    def __post_init__(self) -> None:
        """Check the value."""
        _number("constant", "value", self.value)

    def __call__(self, step: Any) -> Any:
        """The value."""
        return self.value


@dataclass(frozen=True)
class linear:
    """From `start` to `end` over `steps` steps: `start + (end − start) · step / max(steps − 1, 1)`, then `end`.

    >>> from penalties import schedules
    >>> ramp = schedules.linear(0.0, 1.0, steps=11)
    >>> ramp(0), ramp(5), ramp(10), ramp(99)
    (0.0, 0.5, 1.0, 1.0)
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        """Check both ends and the number of steps."""
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
        """Check the value and the number of steps; with 0 steps there is no warm-up."""
        _number("warmup", "value", self.value)
        check_count("warmup", "steps", self.steps, 0)

    def __call__(self, step: Any) -> Any:
        """The weight at this step."""
        return self.value if self.steps == 0 else self.value * _least(step / self.steps, 1.0)


@dataclass(frozen=True)
class cosine:
    """From `start` to `end` along half a cosine over `steps` steps, slow at both ends; then `end`.

    >>> from penalties import schedules
    >>> fade = schedules.cosine(1.0, 0.0, steps=11)
    >>> fade(0), round(fade(5), 6), round(fade(10), 6)
    (1.0, 0.5, 0.0)
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        """Check both ends and the number of steps."""
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
        """Check the value and the rate."""
        _number("exponential", "value", self.value)
        _number("exponential", "rate", self.rate)

    def __call__(self, step: Any) -> Any:
        """The weight at this step."""
        return self.value * self.rate**step


@dataclass(frozen=True, init=False)
class piecewise:
    """Each value from its step on; before the first step, the first value.

    >>> from penalties import schedules
    >>> phases = schedules.piecewise({0: 0.0, 100: 0.1, 500: 1.0})
    >>> phases(99), phases(100), phases(1000)
    (0.0, 0.1, 1.0)
    """

    points: tuple[tuple[int, float], ...]

    def __init__(self, values: Mapping[int, float]) -> None:
        """Check the steps and values, and sort them by step."""
        if not isinstance(cast("object", values), Mapping) or not values:
            raise OptionError("piecewise", "values", values, "a mapping from steps to weights that is not empty")
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
    """Schedules one after another, each counted from its own first step; the last one stays.

    >>> from penalties import schedules
    >>> rise, hold, fade = schedules.warmup(1.0, 10), schedules.constant(1.0), schedules.exponential(1.0, 0.5)
    >>> plan = schedules.chain((rise, 10), (hold, 90), fade)
    >>> plan(5), plan(50), plan(101)
    (0.5, 1.0, 0.5)
    """

    parts: tuple[tuple[Schedule, int], ...]
    last: Schedule

    def __init__(self, *parts: tuple[Schedule, int] | Schedule) -> None:
        """Take pairs of a schedule and its number of steps, then a last schedule on its own."""
        if not parts or not callable(parts[-1]):
            raise OptionError("chain", "parts", parts, "pairs (schedule, steps), then a last schedule without steps")
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
    """The product of schedules, such as a warm-up and a decay.

    >>> from penalties import schedules
    >>> plan = schedules.product(schedules.warmup(1.0, 10), schedules.exponential(0.5, 0.9))
    >>> plan(0), round(plan(5), 6)
    (0.0, 0.147623)
    """

    schedules: tuple[Schedule, ...]

    def __init__(self, *schedules: Schedule) -> None:
        """Take at least one schedule."""
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
    """`{name: weight}` at this step, for `pipeline(..., weights=…)`; a change of weight recompiles nothing.

    >>> from penalties import schedules
    >>> schedules.weights({"kl": schedules.warmup(0.1, 10)}, 5)
    {'kl': 0.05}
    """
    if owner(step) is None and (not is_whole(step) or step < 0):
        raise OptionError("schedules", "step", step, "a whole number of at least 0, or a 0-d array")
    return {name: schedule(step) for name, schedule in schedules.items()}


def apply(pipeline: "Pipeline", schedules: Mapping[str, Schedule], step: Any) -> "Pipeline":
    """The pipeline with the weights of these schedules at this step.

    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.l1), pn.Term(pn.l2)])
    >>> pn.schedules.apply(pipeline, {"l1": pn.schedules.linear(0.0, 0.1, steps=11)}, 5).weights
    {'l1': 0.05, 'l2': 1.0}
    """
    return pipeline.with_weights(weights(schedules, step))


def from_config(table: Mapping[str, Any], weight: float = 1.0, *, steps: int | None = None) -> Schedule:
    """The schedule that a table of a configuration describes: `{"kind": "warmup", "steps": 20}`.

    The keys are the arguments of that schedule. A value that is left out is `weight`: that of `constant`, `warmup` and
    `exponential`, the end of `linear`, which starts at 0, and the start of `cosine`, which ends at 0. The steps of
    `linear` and `cosine` default to `steps`, the length of the run. In a `product` the first factor has the weight, the
    others have 1. `chain` has `parts`, a list of `{"schedule": …, "steps": …}`, and `last`.

    >>> from penalties import schedules
    >>> schedules.from_config({"kind": "warmup", "steps": 20}, weight=0.05)
    warmup(value=0.05, steps=20)
    >>> schedules.from_config({"kind": "linear", "start": 1.0, "end": 0.0}, steps=100)
    linear(start=1.0, end=0.0, steps=100)
    """
    if not isinstance(cast("object", table), Mapping):
        raise OptionError("schedule", "table", table, 'a table, such as {"kind": "warmup", "steps": 20}')
    given = {key: value for key, value in table.items() if value is not None}
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise OptionError("schedule", "kind", kind, f"one of {', '.join(_KINDS)}{did_you_mean(kind, _KINDS)}")
    keys = _KEYS[kind]
    for key in given:
        if key not in keys:
            raise OptionError(kind, key, given[key], f"only the keys kind, {', '.join(keys)}{did_you_mean(key, keys)}")
    arguments = {**_defaults(kind, weight, steps), **given}
    for key in keys:
        if key not in arguments:
            length = kind in _LONG and key == "steps"
            outside = " outside the program, which knows the steps of its run" if length else ""
            raise OptionError(kind, key, None, f"a value: this key is required{outside}")
    if kind == "piecewise":
        return piecewise(_with_whole_steps(arguments["values"]))
    if kind == "product":
        factors = _tables("product", "schedules", arguments["schedules"])
        return product(
            *[from_config(factor, 1.0 if index else weight, steps=steps) for index, factor in enumerate(factors)]
        )
    if kind == "chain":
        parts = _tables("chain", "parts", arguments["parts"])
        return chain(*[_part(part, weight) for part in parts], from_config(arguments["last"], weight, steps=steps))
    return _KINDS[kind](**arguments)


def to_config(schedule: Schedule) -> dict[str, Any]:
    """The table that `from_config` makes this schedule of. Your own function has none, which is an error.

    >>> from penalties import schedules
    >>> schedules.to_config(schedules.warmup(0.05, steps=20))
    {'kind': 'warmup', 'value': 0.05, 'steps': 20}
    """
    kind = type(schedule).__name__
    if _KINDS.get(kind) is not type(schedule):
        raise OptionError("schedule", "schedule", schedule, f"a schedule of penalties.schedules: {', '.join(_KINDS)}")
    if isinstance(schedule, piecewise):
        return {"kind": kind, "values": {str(step): value for step, value in schedule.points}}
    if isinstance(schedule, product):
        return {"kind": kind, "schedules": [to_config(factor) for factor in schedule.schedules]}
    if isinstance(schedule, chain):
        parts = [{"schedule": to_config(part), "steps": steps} for part, steps in schedule.parts]
        return {"kind": kind, "parts": parts, "last": to_config(schedule.last)}
    return {"kind": kind, **{key: getattr(schedule, key) for key in _KEYS[kind]}}


_KINDS: Final[dict[str, Callable[..., Schedule]]] = {
    kind.__name__: kind for kind in (constant, linear, warmup, cosine, exponential, piecewise, product, chain)
}
_LONG: Final = ("linear", "cosine")
"""The kinds that take as long as the run unless they say otherwise."""
_KEYS: Final[dict[str, tuple[str, ...]]] = {
    **{
        kind.__name__: tuple(field.name for field in dataclasses.fields(kind))
        for kind in (constant, linear, warmup, cosine, exponential)
    },
    "piecewise": ("values",),
    "product": ("schedules",),
    "chain": ("parts", "last"),
}


def _defaults(kind: str, weight: float, steps: int | None) -> dict[str, Any]:
    """What a table need not say."""
    if kind in _LONG:
        length = {} if steps is None else {"steps": steps}
        return {"start": 0.0, "end": weight, **length} if kind == "linear" else {"start": weight, "end": 0.0, **length}
    return {"value": weight} if kind in ("constant", "warmup", "exponential") else {}


def _tables(kind: str, key: str, value: Any) -> list[Any]:
    if not is_row(value) or not value:
        raise OptionError(kind, key, value, "a list of tables that is not empty")
    return list(value)


def _part(part: Any, weight: float) -> tuple[Schedule, int]:
    if not is_mapping(part) or set(part) != {"schedule", "steps"}:
        raise OptionError("chain", "parts", part, "tables with the keys schedule and steps")
    steps = part["steps"]
    return from_config(part["schedule"], weight, steps=steps), steps


def _with_whole_steps(values: Any) -> Any:
    """Steps as numbers: the keys of TOML and JSON are strings."""
    if not is_mapping(values):
        return values
    return {int(key) if isinstance(key, str) and key.isdecimal() else key: value for key, value in values.items()}


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
