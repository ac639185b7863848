"""Functions of the tests, at the top of a module: they can be named by their paths, and sent to workers."""

from typing import Any

import numpy as np

import penalties as pn

__all__ = [
    "Times",
    "counted",
    "doubled",
    "gradient_of_quadratic",
    "lookup",
    "quadratic",
    "shifted",
    "squares",
    "tripled",
    "with_gradient",
]

calls: list[Any] = []
"""What `counted` and `with_gradient` were called with."""

HESSIAN = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 3.0]])
SLOPE = np.array([0.4, -1.0, 0.2])


def quadratic(x: Any) -> float:
    """½ xᵀHx + cᵀx, as a plain number."""
    point = np.asarray(x, np.float64)
    return float(0.5 * point @ HESSIAN @ point + SLOPE @ point)


def gradient_of_quadratic(x: Any) -> Any:
    return HESSIAN @ np.asarray(x) + SLOPE


def counted(x: Any, *, factor: float = 1.0) -> Any:
    calls.append(x)
    return pn.Evaluation(factor * (x**2).sum(), metrics={"size": float(np.asarray(x).size)})


def with_gradient(x: Any) -> Any:
    calls.append(x)
    return pn.Evaluation((x**2).sum(), gradient={"x": 2 * x})


def lookup(samples: Any, *, table: Any) -> Any:
    """What is in the table for each sample."""
    return [table[int(sample)] for sample in samples]


def shifted(x: Any) -> Any:
    return x - 0.5


def squares(params: Any) -> Any:
    """Of all parameters, counted."""
    calls.append(params)
    return sum((part**2).sum() for part in params.values())


class Times:
    """A term with an option of its own."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return self.factor * x.sum()


doubled, tripled = Times(2.0), Times(3.0)
