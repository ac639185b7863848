"""On a GPU: fused terms against the time of the least possible work, beside eager PyTorch, torch.compile and Liger.

Each part can be run by itself, as `python -m benchmarks gpu.sizes`. The plain side of a row in the last table is its
limit, or the peer that it must not be slower than. Without a GPU everything runs small on the CPU.
"""

import gc
import importlib

import torch

from ..harness import Row
from .measuring import GPU

__all__ = ["PARTS", "run"]

PARTS = ("distributions", "norms", "hidden_states", "local_client", "sizes", "training")


def run(scale: float) -> list[Row]:
    rows: list[Row] = []
    for part in PARTS:
        rows += importlib.import_module(f"{__name__}.{part}").run(scale)
        gc.collect()
        if GPU:
            torch.cuda.empty_cache()
    return rows
