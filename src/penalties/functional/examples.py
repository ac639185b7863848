"""Small arguments to try penalties on: no zeros, no ties, nothing at a kink."""

from typing import Any

import numpy as np

__all__ = [
    "critic",
    "distribution",
    "labelled",
    "matrix",
    "pair",
    "sampled",
    "samples",
    "scalar",
    "two_distributions",
    "two_sampled",
    "two_samples",
]

_VALUES = np.array([[0.3, -1.2, 0.7], [1.9, 0.4, -0.6]])
_OTHERS = np.array([[-0.8, 0.5, 1.1], [0.2, -1.7, 0.9]])


def matrix() -> tuple[Any, ...]:
    """Two rows of three values."""
    return (_VALUES.copy(),)


def scalar() -> tuple[Any, ...]:
    """One number."""
    return (_VALUES[0, 2],)


def pair() -> tuple[Any, ...]:
    """Two matrices of the same shape."""
    return _VALUES.copy(), _OTHERS.copy()


def distribution() -> tuple[Any, ...]:
    """Log-probabilities of two distributions over three classes."""
    return (_log_softmax(_VALUES),)


def labelled() -> tuple[Any, ...]:
    """Log-probabilities of two distributions over three classes, and the class that each should have."""
    return _log_softmax(_VALUES), np.array([2, 0])


def two_distributions() -> tuple[Any, ...]:
    """Two arrays of log-probabilities over three classes."""
    return _log_softmax(_VALUES), _log_softmax(_OTHERS)


def sampled() -> tuple[Any, ...]:
    """Log-probabilities of sampled tokens, two sequences of three."""
    return (-0.1 - np.abs(_VALUES),)


def two_sampled() -> tuple[Any, ...]:
    """The same tokens under a policy and under a reference."""
    return -0.1 - np.abs(_VALUES), -0.1 - np.abs(_OTHERS)


def critic(x: Any) -> Any:
    """A function of samples, one number each, whose slope depends on where it is taken."""
    return (x * x * x).sum(-1)


def samples() -> tuple[Any, ...]:
    """A critic and two samples."""
    return critic, _VALUES.copy()


def two_samples() -> tuple[Any, ...]:
    """A critic, and two samples each of what is real and what is generated."""
    return critic, _VALUES.copy(), _OTHERS.copy()


def _log_softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
