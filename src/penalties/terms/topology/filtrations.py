"""What the terms have in common: the input as numbers, its persistence, and the evaluation of a score of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from ...backends import backend_of
from ...errors import BackendError, NonFiniteError, OptionError, ShapeError
from ...functional.options import POSITIVE, check_choice, check_flag, check_number, is_whole
from ...pipeline.evaluation import Evaluation
from ...pipeline.kinds import is_row
from .alpha import alpha
from .cubical import cubical
from .metrics import averaged, described
from .persistence import Floats, Persistence
from .rips import rips

__all__ = ["Filtering", "Filtration", "Score", "chosen", "longer", "numbers", "one_dimension"]

Filtration: TypeAlias = Literal["rips", "alpha", "sublevel", "superlevel"]
"""How features appear: by distances or balls between points, or by the rising or falling level of an array."""

_FILTRATIONS: Final = ("rips", "alpha", "sublevel", "superlevel")
_CLOUDS: Final = ("rips", "alpha")


class Score(NamedTuple):
    """A function of the features of one input, with its slopes in their births and deaths."""

    value: float
    births: Floats
    deaths: Floats


@dataclass(frozen=True, slots=True)
class Filtering:
    """The options that say which features a term of the name `function` looks at."""

    function: str
    filtration: Filtration
    dimensions: tuple[int, ...]
    max_edge_length: float | None = None
    batched: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        check_choice(self.function, "filtration", self.filtration, _FILTRATIONS)
        check_flag(self.function, "batched", self.batched)
        if self.max_edge_length is not None:
            if self.filtration != "rips":
                expected = f'None with filtration="{self.filtration}": only that of "rips" has edges'
                raise OptionError(self.function, "max_edge_length", self.max_edge_length, expected)
            check_number(self.function, "max_edge_length", self.max_edge_length, "a finite number above 0", POSITIVE)

    @property
    def sign(self) -> float:
        """What births and deaths are multiplied by for deaths to come last: a falling level rises where negated."""
        return -1.0 if self.filtration == "superlevel" else 1.0

    def persistence(self, member: Floats) -> Persistence:
        """The features of one cloud or field, which has at least one point or cell."""
        if self.filtration == "rips":
            longest = math.inf if self.max_edge_length is None else self.max_edge_length
            return rips(self.function, member, self.dimensions, longest)
        if self.filtration == "alpha":
            return alpha(member, self.dimensions)
        return cubical(self.sign * member, self.dimensions)

    def members(self, x: Any) -> list[Floats]:
        """The clouds or fields of an input as NumPy's numbers; they are finite."""
        array = numbers(self.function, "x", x)
        if not np.isfinite(array).all():
            worst = math.nan if np.isnan(array).any() else math.inf
            what = "coordinates" if self.filtration in _CLOUDS else "cells"
            kind = "NaN" if math.isnan(worst) else "infinity"
            raise NonFiniteError.of(worst, f"{self.function}: x contains {kind}; expected finite {what}")
        rank = array.ndim - self.batched
        if self.filtration in _CLOUDS:
            if rank != 2 or not array.shape[-1]:
                shape = "(batch, points, coordinates)" if self.batched else "(points, coordinates)"
                hint = "; for a batch of clouds set batched=True" if rank == 3 and not self.batched else ""
                raise ShapeError(f"{self.function}: x has shape {array.shape}; expected {shape}{hint}")
        elif rank < 1:
            raise ShapeError(f"{self.function}: x has shape {array.shape}; expected at least {1 + self.batched} axes")
        return list(array) if self.batched else [array]

    def evaluation(self, x: Any, score: Callable[[Persistence], Score], *, visible: float) -> Evaluation:
        """The mean score of the members of a batch, or that of the input, with its gradient and metrics."""
        members = self.members(x)
        values: list[float] = []
        gradients: list[Floats] = []
        metrics: list[dict[str, float]] = []
        for member in members:
            found = self.persistence(member) if member.size else _nothing(member)
            value, births, deaths = score(found)
            values.append(value)
            gradients.append(self.sign * found.pull(births, deaths))
            metrics.append(described(found, self.dimensions, visible))
        count = max(len(members), 1)
        gradient = np.array(gradients).reshape(tuple(x.shape)) / count
        return Evaluation(sum(values) / count, gradient={"x": gradient}, metrics=averaged(metrics))


def numbers(function: str, name: str, x: Any) -> Floats:
    """An array of any library as NumPy's float64, in one transfer."""
    ops = backend_of(function, **{name: x})
    still = ops.stop_gradient(ops.upcast(function, ops.whole(x)))
    if ops.tracing(still):
        raise BackendError(
            f"{function}: {name} is being traced by a compiler, which has no values; expected a call outside of "
            "jax.jit, jax.vmap and torch.compile"
        )
    return np.array(ops.read([still])[0], np.float64).reshape(tuple(x.shape))


def longer(function: str, option: str, value: float) -> float:
    """A length of life, checked."""
    return check_number(function, option, value, "a finite number of at least 0", 0.0)


def chosen(function: str, dimensions: Any) -> tuple[int, ...]:
    """Dimensions of features, in order and once each."""
    rows = dimensions if is_row(dimensions) else (dimensions,)
    if not rows or not all(is_whole(row) and row >= 0 for row in rows):
        raise OptionError(function, "dimensions", dimensions, "whole numbers of at least 0")
    return tuple(sorted({int(row) for row in rows}))


def one_dimension(function: str, dimension: Any) -> tuple[int, ...]:
    """The dimension of features, in a tuple."""
    if not is_whole(dimension) or dimension < 0:
        raise OptionError(function, "dimension", dimension, "a whole number of at least 0")
    return (int(dimension),)


def _nothing(member: Floats) -> Persistence:
    """No points, or no cells: no features."""
    none = np.empty(0)
    return Persistence(np.empty(0, np.intp), none, none, lambda births, deaths: np.zeros_like(member))
