"""The custom loss of the Tinker SDK and ours, over HTTP to one server; the SDK's event loop while a slow term runs."""

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

# Seconds that a call may take before it counts as hanging.
LIMIT = 60.0


def loss(data: Sequence[Any], logprobs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    total = (torch.cat(list(logprobs)).exp() - 0.5).square().sum()
    return total, {"total": float(total.detach())}


def slow(logprobs: Sequence[torch.Tensor], *, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return torch.cat(list(logprobs)).square().mean()


def run(scale: float) -> list[Row]:
    rows: list[Row] = []
    with connected() as (_, _, client):
        for count, length in ((4, 16), (16, 64)):
            data = _batch(count, length)
            rows.append(
                compare(
                    f"{count} sequences of {length}",
                    lambda data=data: client.forward_backward_custom(data, loss).result(LIMIT),
                    lambda data=data: forward_backward_custom(client, data, loss).result(LIMIT),
                    seconds=20.0 * scale,
                    unit="ms",
                    most_more=2.0,
                )
            )
        rows.append(_pauses(client, scale))
    return rows


def _pauses(client: Any, scale: float) -> Row:
    loop = client.holder.get_loop()
    data = _batch(4, 16)
    seconds = 2.0 if scale else 0.2
    term = pn.Term(slow, 0.1, runs="process", timeout=30.0, options={"seconds": seconds})
    forward_backward_custom(client, data, loss, regularizers=[term]).result(LIMIT)
    samples: list[list[float]] = [[], [], []]
    for _ in range(max(1, round(3 * scale))):
        for side, busy in zip(samples, (False, True, False), strict=True):
            longest = asyncio.run_coroutine_threadsafe(_longest_pause(seconds + 0.5), loop)
            if busy:
                forward_backward_custom(client, data, loss, regularizers=[term]).result(LIMIT)
            side.append(1000 * longest.result())
    plain, ours, again = samples
    return Row(f"longest pause of the SDK's loop, a term of {seconds:g} s", "ms", plain, ours, again, most=20.0)


async def _longest_pause(seconds: float) -> float:
    """The longest that this loop keeps a coroutine waiting that sleeps for a millisecond at a time."""
    end = time.perf_counter() + seconds
    longest = 0.0
    while (before := time.perf_counter()) < end:
        await asyncio.sleep(0.001)
        longest = max(longest, time.perf_counter() - before - 0.001)
    return longest


def _batch(count: int, length: int) -> list[types.Datum]:
    tokens = np.random.default_rng(0).integers(1, 200, (count, length + 1))
    return [
        types.Datum(
            types.ModelInput.from_ints(row[:-1].tolist()),
            {"target_tokens": torch.from_numpy(row[1:]), "weights": torch.ones(length)},
        )
        for row in tokens
    ]
