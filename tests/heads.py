"""Output layers with small arrays, for tests of `Logits`."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from penalties.arrays import Logits
from penalties.backends import owner
from penalties.functional import blocks
from tests.libraries import DEVICE

__all__ = ["arrays", "head", "learned", "mask_of", "tensors", "use_small_blocks"]


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Any]:
    return [torch.tensor(x, dtype=dtype, device=DEVICE) for x in arrays(*shapes, seed=seed)]


def head(leading: tuple[int, ...], *, bias: bool = True, cap: float | None = 3.0, **more: Any) -> Logits:
    hidden, weight, offset = tensors((*leading, 4), (7, 4), (7,), **more)
    return Logits(hidden, weight, offset if bias else None, cap)


def learned(logits: Logits, parts: tuple[str, ...] = ("hidden", "weight", "bias")) -> list[Any]:
    found = [getattr(logits, part) for part in parts if getattr(logits, part) is not None]
    return [x.requires_grad_() for x in found]


def mask_of(leading: tuple[int, ...]) -> torch.Tensor:
    return (torch.arange(np.prod(leading), device=DEVICE) % 3).reshape(leading).double() / 2


def use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows at a time."""
    monkeypatch.setattr(blocks, "_FEWEST", 2)
    for array in (np.zeros(1), torch.zeros(1), jax.numpy.zeros(1)):
        monkeypatch.setattr(owner(array), "block", lambda _: 1)
