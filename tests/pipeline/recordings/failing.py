"""Terms that fail, at the top of a module: a recording can name them."""

import time
from typing import Any

import numpy as np

import penalties as pn

__all__ = ["drawn", "fails", "late", "not_finite", "remembers"]


def fails(x: Any, *, above: float = 1.0) -> Any:
    """Raises where an element is too large."""
    if float(abs(x).max()) > above:
        raise ValueError(f"found {float(abs(x).max()):g}, more than {above:g}")
    return (x**2).sum()


def remembers(x: Any, state: Any = None, step: Any = None) -> Any:
    """Raises in the third call."""
    count = 1 if state is None else state["count"] + 1
    if count == 3:
        raise RuntimeError(f"call {count}, step {step}")
    return pn.Evaluation(x.sum(), state={"count": count})


def late(x: Any) -> Any:
    time.sleep(5)
    return x.sum()


def not_finite(x: Any) -> Any:
    return x.sum() / 0.0


def drawn(x: Any, *, seed: int = 0, step: Any = None) -> Any:
    """Raises with what it drew."""
    raise ValueError(f"drew {np.random.default_rng(seed + int(step)).random():.12f}")
