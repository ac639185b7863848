"""Simultaneous perturbation: a gradient from pairs of values along random signs."""

from typing import Any

from ...backends import Backend
from ...functional.options import POSITIVE, check_count, check_number
from ..term import Term
from .draws import Draws
from .perturbing import Perturbing, check_estimable
from .wrapper import around, parameters_of

__all__ = ["SPSA", "Signs"]


class Signs(Perturbing):
    """A term along directions of random signs."""

    kind = "spsa"
    title = "SPSA"

    def __init__(self, term: Term, samples: int, c: float, wrt: tuple[str, ...] | None = None, seed: int = 0) -> None:
        """Check the options."""
        check_count(self.title, "samples", samples, 1)
        c = check_number(self.title, "c", c, "a finite number above 0", low=POSITIVE)
        super().__init__(term, int(samples), c, wrt, seed, samples=int(samples), c=c)

    def directions(self, draws: Draws, ops: Backend, like: Any, count: int) -> Any:
        """−1 or +1 for each element."""
        return draws.signs(ops, like, count)


def SPSA(
    term: Term, samples: int = 4, c: float = 0.01, wrt: str | tuple[str, ...] | list[str] | None = None, seed: int = 0
) -> Term:
    """The term with a gradient by simultaneous perturbation (Spall, 1992): for functions that have none.

    With directions Δᵢ of random signs, the same in all elements of all inputs of a pair of calls:

        value    = f(x)
        gradient = 1/n · Σᵢ Δᵢ · (f(x + c·Δᵢ) − f(x − c·Δᵢ)) / 2c

    It is exact in expectation for quadratic functions, and up to c² for smooth ones. A call evaluates the term
    `1 + 2·samples` times, or once if no gradient is taken. Directions are drawn anew at each step: pass `step=`.

    - `samples`: the number n of directions.
    - `c`: the size of a step away from x, in each element.
    - `wrt`: the inputs that are perturbed; by default all floats that require a gradient.
    - `seed`: a whole number, folded with the step.

    >>> import numpy as np
    >>> import penalties as pn
    >>> def rounded(x):
    ...     return float(np.round(x, 2).sum())
    >>> pipeline = pn.Pipeline([pn.SPSA(pn.Term(rounded), samples=64, c=0.5)])
    >>> out = pipeline.value_and_grad(np.array([1.0]), step=0)
    >>> out.gradient
    array([1.])
    """
    check_estimable("SPSA", term)
    wrt = parameters_of("SPSA", term, wrt)
    return around(Signs, term, inner={"differentiable": False}, samples=samples, c=c, wrt=wrt, seed=seed)
