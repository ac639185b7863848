"""Whether several sequences can share a row of a model's input without seeing one another: found by trying it."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from ...errors import OptionError
from .batch import Batch, Row
from .forward import run
from .layout import Packing
from .model import LocalModel

__all__ = ["packing_of"]

_LENGTHS: Final = (9, 7, 5, 4, 2)
"""Two rows of several sequences, and a row with padding."""


def packing_of(model: LocalModel) -> Packing:
    """How sequences share rows in this model; raises if it would let them see one another.

    Positions that start again at 0 tell transformers where a sequence begins. FlashAttention reads them in a single row
    only; the other implementations make a mask of them.
    """
    with model.passing():
        for packing in ("rows", "row"):
            if _separates(model, packing):
                return packing
    expected = "False: in this model a sequence would see those before it in its row, or have no positions of its own"
    raise OptionError("LocalTrainingClient", "packing", True, expected)


def _separates(model: LocalModel, packing: Packing) -> bool:
    """Whether each sequence has the log-probabilities that it has by itself, whatever else is in its row."""
    import torch

    random = np.random.default_rng(0)

    def drawn(length: int) -> Any:
        return random.integers(0, min(model.vocabulary, model.outputs), length)

    rows = [Row(drawn(length), drawn(length), {}) for length in _LENGTHS]
    half = next(model.base.parameters()).element_size() < 4

    def logprobs(rows: list[Row]) -> list[Any]:
        batch = Batch(rows, packing)
        with torch.no_grad():
            return batch.split(run(model, batch).logprobs)

    def same(found: list[Any], expected: list[Any], tolerance: float, but: int | None = None) -> bool:
        pairs = [pair for index, pair in enumerate(zip(found, expected, strict=True)) if index != but]
        return all(bool((a - b).abs().max() <= tolerance * b.abs().max()) for a, b in pairs)

    try:
        together = logprobs(rows)
    except TypeError:
        # A model whose forward takes no positions.
        return False
    alone = [logprobs([row])[0] for row in rows]
    if not same(together, alone, 5e-2 if half else 1e-4):
        return False
    for index, row in enumerate(rows):
        changed = [*rows[:index], replace(row, tokens=drawn(len(row.tokens))), *rows[index + 1 :]]
        # The same operations on the same shapes: no rounding hides that something was seen.
        if not same(logprobs(changed), together, 1e-3 if half else 1e-6, but=index):
            return False
    return True
