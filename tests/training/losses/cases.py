"""Data for the base losses."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from penalties.training import Datum, ModelInput

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def datum(targets: Any, **inputs: Any) -> Datum:
    array = np.asarray(targets)
    return Datum(ModelInput.from_ints(range(len(array))), {"target_tokens": array, **inputs})


def batch(lengths: list[int], candidates: int | None = None, seed: int = 0, **inputs: Any) -> list[Datum]:
    """Data with targets of these lengths; `inputs` make what else they hold, from a generator and a shape."""
    generator = np.random.default_rng(seed)
    shapes = [(length,) if candidates is None else (length, candidates) for length in lengths]
    made = [{key: make(generator, shape) for key, make in inputs.items()} for shape in shapes]
    return [datum(np.zeros(shape, np.int64), **more) for shape, more in zip(shapes, made, strict=True)]


def drawn(data: list[Datum], seed: int) -> list[torch.Tensor]:
    """Log-probabilities for the targets of each datum."""
    generator = np.random.default_rng(seed)
    found = [-generator.exponential(1.0, one.loss_fn_inputs["target_tokens"].shape) for one in data]
    return [torch.tensor(array, requires_grad=True) for array in found]


def numpy(tensors: list[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    return [tensor.detach().numpy() for tensor in tensors]


def check_gradients(loss_of: Any, logprobs: list[torch.Tensor], tolerance: float = 1e-6) -> None:
    """The gradients at every element are central differences."""
    found = torch.autograd.grad(loss_of(logprobs), logprobs, allow_unused=True, materialize_grads=True)
    step = 1e-6
    for place, tensor in enumerate(logprobs):
        for index in np.ndindex(*tensor.shape):
            ends = []
            for sign in (1, -1):
                moved = [one.detach().clone() for one in logprobs]
                moved[place][index] += sign * step
                ends.append(loss_of(moved).item())
            assert found[place][index].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=tolerance)


def some(generator: np.random.Generator, shape: Any) -> Any:
    return generator.integers(0, 3, shape).astype(np.float32)
