"""The Tinker SDK's own custom loss and ours, over HTTP to one server; and its event loop while a slow term runs."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tests.servers.sdk import connected
from tinker import types

import penalties as pn
from penalties.training import forward_backward_custom

from .harness import Row, compare

_LIMIT = 60.0
_SLOW = 2.0


def loss(data: Sequence[Any], logprobs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    total = sum((one.exp() - 0.5).square().sum() for one in logprobs)
    assert isinstance(total, torch.Tensor)
    return total, {"total": float(total.detach())}


def slowly(logprobs: Sequence[torch.Tensor]) -> torch.Tensor:
    time.sleep(_SLOW)
    return torch.cat(list(logprobs)).square().mean()


def batch(count: int, length: int) -> list[types.Datum]:
    generator = np.random.default_rng(0)
    tokens = generator.integers(1, 200, (count, length + 1))
    return [
        types.Datum(
            types.ModelInput.from_ints(row[:-1].tolist()),
            {"target_tokens": torch.from_numpy(row[1:]), "weights": torch.ones(length)},
        )
        for row in tokens
    ]


def run(scale: float) -> list[Row]:
    rows: list[Row] = []
    with connected() as (_, _, client):
        for count, length in ((4, 16), (16, 64)):
            data = batch(count, length)
            rows.append(
                compare(
                    f"{count} sequences of {length}",
                    lambda data=data: client.forward_backward_custom(data, loss).result(_LIMIT),
                    lambda data=data: forward_backward_custom(client, data, loss).result(_LIMIT),
                    seconds=20.0 * scale,
                    unit="ms",
                    most_more=2.0,
                )
            )
        loop = client.holder.get_loop()
        data = batch(4, 16)
        term = pn.Term(slowly, 0.1, runs="process", timeout=30.0)
        forward_backward_custom(client, data, loss, regularizers=[term]).result(_LIMIT)
        samples: list[list[float]] = [[], [], []]
        for _ in range(max(1, round(3 * scale))):
            for side, busy in zip(samples, (False, True, False), strict=True):
                beating = asyncio.run_coroutine_threadsafe(_longest(_SLOW + 0.5), loop)
                if busy:
                    forward_backward_custom(client, data, loss, regularizers=[term]).result(_LIMIT)
                side.append(1000 * beating.result())
    plain, ours, again = samples
    rows.append(Row("longest pause of the SDK's loop, a term of 2 s", "ms", plain, ours, again, most=20.0))
    return rows


async def _longest(seconds: float) -> float:
    """The longest that this loop let a coroutine wait which asks every millisecond, for so many seconds."""
    end = time.perf_counter() + seconds
    longest = 0.0
    while (before := time.perf_counter()) < end:
        await asyncio.sleep(0.001)
        longest = max(longest, time.perf_counter() - before - 0.001)
    return longest
