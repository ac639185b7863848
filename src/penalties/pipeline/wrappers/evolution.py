"""Evolution strategies: the gradient of a term smoothed by Gaussian noise."""

from collections.abc import Iterator
from typing import Any

from ...backends import Backend
from ...errors import OptionError
from ...functional.options import POSITIVE, check_flag, check_number, is_whole
from ..term import Term
from .draws import Draws
from .perturbing import Pair, Perturbing, check_estimable
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

    def direction(self, draws: Draws, ops: Backend, like: Any) -> Any:
        """A draw of the standard normal distribution for each element."""
        return draws.normal(ops, like)

    def slopes(self, ops: Backend, pairs: Iterator[Pair]) -> Iterator[tuple[Any, Pair]]:
        """The difference of the two values, or of their ranks in the population."""
        if not self.ranks:
            yield from super().slopes(ops, pairs)
            return
        kept = list(pairs)
        values = [value for pair in kept for value in (pair.plus, pair.minus)]
        for index, pair in enumerate(kept):
            shaped = _rank(ops, values, 2 * index) - _rank(ops, values, 2 * index + 1)
            yield shaped / (2.0 * self.size), pair


def _rank(ops: Backend, values: list[Any], index: int) -> Any:
    """How many of the values are below this one, scaled to −½ … ½; equal ones share their ranks."""
    one = values[index]
    below: Any = sum(ops.where(one > other, 1.0, 0.0) - ops.where(one < other, 1.0, 0.0) for other in values)
    return below / (2.0 * (len(values) - 1))


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
    quadratic functions it is that of f. A call evaluates the term `1 + population` times, or once if nobody wants a
    gradient. Noise is drawn anew at each step: pass `step=`.

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
