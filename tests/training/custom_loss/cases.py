"""Losses that the tests of custom losses share."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.training.clients import RemoteClient, plain_gradients

SERVERS = [("tinker", False), ("sums", False), ("averages", True)]


def squared(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
    return sum(((one.exp() - 0.3) ** 2).sum() * (place + 1) for place, one in enumerate(logprobs)), {"mine": 7.0}


def pairwise(data: Any, logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
    sums = torch.stack([one.sum() for one in logprobs])
    return -torch.nn.functional.logsigmoid(sums[0::2] - sums[1::2]).mean(), {}


def assert_trained_alike(client: RemoteClient, data: Any, loss: Any, rtol: float = 1e-5) -> None:
    for name, gradient in plain_gradients(data, loss).items():
        found = client.gradients()[name]
        assert found is not None
        scale = float(gradient.abs().max())
        torch.testing.assert_close(found, gradient, rtol=rtol, atol=rtol * scale)
