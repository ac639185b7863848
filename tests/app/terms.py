"""Terms of one's own, for configs."""

import random
import time
from typing import Any

import numpy as np
import torch

import penalties as pn


def counting(logprobs: Any, state: Any = None) -> Any:
    """A term that remembers in NumPy what it has seen."""
    seen = np.zeros(1) if state is None else state["seen"]
    assert isinstance(seen, np.ndarray)
    value = (logprobs[0] ** 2).mean() / (1.0 + float(seen[0]))
    return pn.Evaluation(value, metrics={"seen": float(seen[0])}, state={"seen": seen + 1.0, "name": "counting"})


def failing(logprobs: Any, step: int) -> Any:
    """A term that fails at step 4."""
    if step == 4:
        raise RuntimeError("as the test wants it")
    return logprobs[0].mean() ** 2


def cranky(logprobs: Any, *, fail: bool = False, size: float = 1.0) -> Any:
    if fail:
        raise RuntimeError("as the test wants it")
    return size * logprobs[0].mean() ** 2


def huge(logprobs: Any) -> Any:
    return 1e6 * logprobs[0].mean() ** 2


def drawing(logprobs: Any) -> Any:
    """A term that draws from everything that one may draw from."""
    scale = torch.rand(()) + random.random() + float(np.random.random())  # noqa: NPY002 (it, too)
    return scale * logprobs[0].mean() ** 2


def slow(logprobs: Any) -> Any:
    time.sleep(0.2)
    return logprobs[0].mean() ** 2
