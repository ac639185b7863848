"""Functions of the tests, at the top of a module: they can be named by their paths, and sent to workers."""

import time
from typing import Any

import numpy as np

import penalties as pn
from tests.libraries import LIBRARIES

__all__ = ["calls", "counted", "curve", "numbers", "quadratic", "rewards", "shifted", "square_of_all", "with_gradient"]

calls: list[Any] = []
"""What `counted` was called with."""

HESSIAN = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 3.0]])
SLOPE = np.array([0.4, -1.0, 0.2])


def numbers(x: Any) -> Any:
    """An array of any library as one of NumPy's."""
    return next(library for library in LIBRARIES if type(library.array([0.0])) is type(x)).numpy(x)


def quadratic(x: Any) -> float:
    """½ xᵀHx + cᵀx, as a plain number."""
    point = np.asarray(x, np.float64)
    return float(0.5 * point @ HESSIAN @ point + SLOPE @ point)


def gradient_of_quadratic(x: Any) -> Any:
    return HESSIAN @ np.asarray(x) + SLOPE


def curve(x: Any) -> Any:
    """A function whose gradient is known."""
    return (x**2).sum()


def square_of_all(params: Any) -> Any:
    return sum((part**2).sum() for part in params.values())


def counted(x: Any, *, factor: float = 1.0) -> Any:
    calls.append(x)
    return pn.Evaluation(factor * (x**2).sum(), metrics={"size": float(np.asarray(x).size)})


def with_gradient(x: Any) -> Any:
    calls.append(x)
    return pn.Evaluation(float((x**2).sum()), gradient={"x": 2 * x})


def rewards(samples: Any, *, table: Any) -> Any:
    """What is in the table for each sample."""
    return [table[int(sample)] for sample in samples]


def shifted(x: Any) -> Any:
    return x - 0.5


def slow(x: Any) -> Any:
    time.sleep(0.01)
    return float(np.asarray(x).sum())
