"""Batches for the adapters."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from penalties.training import adapters

NAMES = adapters.__all__
PAIRED = {"kl": "reference", "consistency": "pair"}
SAMPLED = [name for name in NAMES if name != "orthogonality"]
LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def slope(x: Any) -> Any:
    """Something with a gradient that depends on where it is."""
    return (x**3).sum()


def drawn(lengths: list[int], candidates: int | None = None, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(seed)
    return [-generator.exponential(1.0, (n,) if candidates is None else (n, candidates)) - 0.01 for n in lengths]


def call(name: str, arrays: Any, others: Any = None, **options: Any) -> Any:
    """An adapter, with a second input where it takes one."""
    if name in PAIRED:
        options[PAIRED[name]] = others
    if name == "gradient_penalty":
        options.setdefault("fn", slope)
    return getattr(adapters, name)(arrays, **options)
