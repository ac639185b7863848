"""Inputs of every filtration, and gradients by finite differences."""

from collections.abc import Callable
from typing import Any

import numpy as np

from penalties.terms import topology

__all__ = ["FILTRATIONS", "circle", "cloud", "differences", "field", "lives", "of"]

FILTRATIONS = ("rips", "alpha", "sublevel", "superlevel")


def cloud(count: int = 25, dimension: int = 2, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(count, dimension))


def circle(count: int = 40, seed: int = 0, noise: float = 0.05) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    angles = 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angles), np.sin(angles)], -1) + noise * rng.normal(size=(count, 2))


def field(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


def of(filtration: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """An input with features of dimensions 0 and 1."""
    return cloud(seed=seed) if filtration in ("rips", "alpha") else field(7, 8, seed=seed)


def differences(
    fn: Callable[[Any], Any], x: np.ndarray[Any, Any], *, step: float = 1e-6
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The gradient that a term returns at `x`, and the one by central differences."""
    returned = fn(x).gradient["x"]
    measured = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        shifted = [x.copy(), x.copy()]
        shifted[0][index] += step
        shifted[1][index] -= step
        above, below = (fn(moved).value for moved in shifted)
        measured[index] = (above - below) / (2 * step)
    return returned, measured


def lives(x: Any, dimension: int, **options: Any) -> Any:
    """How long the features that die live, longest first."""
    diagram = np.asarray(topology.diagram(x, dimension=dimension, **options))
    life = np.abs(diagram[:, 1] - diagram[:, 0])
    return np.sort(life[np.isfinite(life)])[::-1]
