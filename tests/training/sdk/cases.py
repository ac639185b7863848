"""Data and losses for the tests through the SDK."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tinker import types
from torch import Tensor

from tests.servers.sdk import LIMIT


def batch(lengths: Sequence[int] = (5, 9, 3), candidates: int | None = None, seed: int = 0) -> list[types.Datum]:
    """Sequences of random tokens; the first position of each does not count."""
    random = np.random.default_rng(seed)
    data: list[types.Datum] = []
    for length in lengths:
        tokens = random.integers(1, 60, length + 1)
        shape = (length,) if candidates is None else (length, candidates)
        targets = tokens[1:] if candidates is None else random.integers(1, 60, shape)
        weights = np.ones(shape, np.float32)
        weights[0] = 0.0
        given = {"target_tokens": torch.from_numpy(targets), "weights": torch.from_numpy(weights)}
        data.append(types.Datum(types.ModelInput.from_ints(tokens[:-1].tolist()), given))
    return data


def logprobs(client: Any, data: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    output = client.forward(list(data), "cross_entropy").result(LIMIT)
    return [np.asarray(one["logprobs"].to_numpy()) for one in output.loss_fn_outputs]


def assert_alike(found: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-5) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def pairwise(data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
    """A loss that is not linear, and in which each datum depends on the others; weights of both signs come of it."""
    means = torch.stack([one.mean() for one in logprobs])
    loss = torch.nn.functional.softplus(means[1:] - means[:-1]).sum() + (means**2).sum()
    return loss, {"spread": float((means.max() - means.min()).detach())}


def gradients(client: Any) -> dict[str, Tensor]:
    """Of every weight that is trained, in the model behind a client."""
    graph = client.forward_with_graph(batch()).result(LIMIT)
    return {name: parameter.grad for name, parameter in graph.inputs["params"].items()}
