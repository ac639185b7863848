"""Evolution strategies: the gradient of a term smoothed by Gaussian noise."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from ...backends import Backend
from ...errors import OptionError
from ...functional.options import POSITIVE, check_flag, check_number, is_whole
from ..term import Term
from .draws import Draws
from .perturbing import Perturbing, Tried, check_estimable
from .wrapper import around, parameters_of

__all__ = ["EvolutionStrategies", "Smoothed"]


class Smoothed(Perturbing):
    """A term along directions of Gaussian noise."""

    kind = "evolution_strategies"
    title = "EvolutionStrategies"

    def __init__(
        self,
        term: Term,
        population: int,
        sigma: float,
        ranks: bool = False,
        wrt: tuple[str, ...] | None = None,
        seed: int = 0,
    ) -> None:
        """Check the options."""
        if not is_whole(population) or population < 2 or population % 2:
            raise OptionError(self.title, "population", population, "an even number of at least 2")
        sigma = check_number(self.title, "sigma", sigma, "a finite number above 0", low=POSITIVE)
        check_flag(self.title, "ranks", ranks)
        self.ranks: bool = bool(ranks)
        own = {"population": int(population), "sigma": sigma, "ranks": self.ranks}
        super().__init__(term, int(population) // 2, sigma, wrt, seed, **own)

    def directions(self, draws: Draws, ops: Backend, like: Any, count: int) -> Any:
        """Draws of the standard normal distribution for each element."""
        return draws.normal(ops, like, count)

    def slopes(self, ops: Backend, tried: Iterable[Tried]) -> Iterator[tuple[Any, Tried]]:
        """The differences of the two values, or of their ranks in the population."""
        if not self.ranks:
            yield from super().slopes(ops, tried)
            return
        kept = list(tried)
        values = ops.concatenate([values for some in kept for values in (some.plus, some.minus)])
        for some in kept:
            shaped = _ranks(ops, some.plus, values) - _ranks(ops, some.minus, values)
            yield shaped / (2.0 * self.size), some


def _ranks(ops: Backend, some: Any, values: Any) -> Any:
    """How many of all values are below each of these, scaled to −½ … ½; equal ones share their ranks."""
    each = some[:, None]
    below = ops.where(each > values, 1.0, 0.0) - ops.where(each < values, 1.0, 0.0)
    # NaN is neither below nor above any, and must not count as one in the middle.
    return ops.where(some == some, ops.sum(below, 1) / (2.0 * (values.shape[0] - 1)), math.nan)


def EvolutionStrategies(
    term: Term,
    population: int = 16,
    sigma: float = 0.1,
    ranks: bool = False,
    wrt: str | tuple[str, ...] | list[str] | None = None,
    seed: int = 0,
) -> Term:
    """The term with the gradient of itself smoothed by Gaussian noise (Salimans et al., 2017).

    With noise ε₁ … εₙ of the standard normal distribution and n = population / 2 antithetic pairs:

        value    = f(x)
        gradient = 1/n · Σᵢ εᵢ · (f(x + σ·εᵢ) − f(x − σ·εᵢ)) / 2σ

    In expectation this is the gradient of `E[f(x + σ·ε)]`, which has one even where f is piecewise constant; for
    quadratic functions it is that of f. A call evaluates the term `1 + population` times, or once if no gradient is
    taken. Noise is drawn anew at each step: pass `step=`.

    - `population`: how many points beside x are tried, an even number.
    - `sigma`: the standard deviation σ of the noise.
    - `ranks`: whether values are replaced by their ranks in the population, from −½ to ½. The gradient then has the
      direction in which f falls and no scale of f: outliers do no harm, and it is no longer that of the smoothed f.
    - `wrt`: the inputs that are perturbed; by default all floats that require a gradient.
    - `seed`: a whole number, folded with the step.

    >>> import numpy as np
    >>> import penalties as pn
    >>> def wrong(x):
    ...     return int((x < 0).sum())
    >>> pipeline = pn.Pipeline([pn.EvolutionStrategies(pn.Term(wrong), population=2000, sigma=1.0)])
    >>> out = pipeline.value_and_grad(np.array([-0.1, 0.1]), step=0)
    >>> np.round(out.gradient, 1)
    array([-0.4, -0.4])
    """
    check_estimable("EvolutionStrategies", term)
    wrt = parameters_of("EvolutionStrategies", term, wrt)
    own: dict[str, Any] = {"population": population, "sigma": sigma, "ranks": ranks, "wrt": wrt, "seed": seed}
    return around(Smoothed, term, inner={"differentiable": False}, **own)
