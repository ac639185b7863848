"""Orthogonality of 8192 × 256 against the plain 8192 × 8192 Gram matrix, forward and backward."""

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.profiler import ProfilerActivity, profile

import penalties

from .harness import Row, compare, gradient, keep_memory


def gram(x: Tensor) -> Tensor:
    rows = normalize(x, dim=-1)
    products = rows @ rows.T
    return products.pow(2).sum() - products.diagonal().pow(2).sum()


def peak(side: Callable[[], object]) -> float:
    """Most megabytes of tensors that one call holds at a time."""
    # The allocator's own count, which the profiler records at every change: exact and the same in every run, where a
    # process's resident size hides what fits into memory that was freed before.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        side()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    return max(itertools.accumulate(event["args"]["Bytes"] for event in changes)) / 1e6


def run(scale: float) -> list[Row]:
    keep_memory()
    x = torch.randn(8192, 256, generator=torch.Generator().manual_seed(0), requires_grad=True)
    plain, ours = gradient(gram, x), gradient(penalties.orthogonality, x)
    torch.testing.assert_close(ours(), plain())
    return [
        compare("time", plain, ours, seconds=15.0 * scale, unit="ms", most_ratio=0.25),
        Row("peak memory", "MB", [peak(plain)], [peak(ours)], [peak(plain)], most_ratio=0.1),
    ]
