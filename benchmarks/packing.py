"""Where one flat array of a list's leaves stops being faster than a loop over them: time(pack) / time(loop) of l1."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

import penalties
from penalties.backends import jax as jax_backend
from penalties.backends import numpy as numpy_backend
from penalties.backends import torch as torch_backend

from .harness import Row, table, take_turns

SIZES = (64, 256, 1024, 4096, 8192, 16384, 65536)
COUNTS = (4, 64)


def limit_numpy(limit: float) -> None:
    numpy_backend._PACK_BELOW = limit


def limit_torch(limit: float) -> None:
    torch_backend._PACK_BELOW["cpu"] = limit


def limit_jax(limit: float) -> None:
    jax_backend._PACK_BELOW = limit


def numpy_call(leaves: Sequence[np.ndarray]) -> Callable[[], object]:
    return lambda: penalties.l1(leaves)


def torch_call(leaves: Sequence[np.ndarray]) -> Callable[[], object]:
    tensors = [torch.from_numpy(leaf).requires_grad_() for leaf in leaves]
    return lambda: torch.autograd.grad(penalties.l1(tensors), tensors)


def jax_call(leaves: Sequence[np.ndarray]) -> Callable[[], object]:
    arrays = [jax.numpy.asarray(leaf) for leaf in leaves]
    gradient = jax.grad(penalties.l1)
    return lambda: jax.block_until_ready(gradient(arrays))


# The way to set the limit, its present value, and a call with these leaves.
LIBRARIES: dict[str, tuple[Callable[[float], None], float, Callable[[Sequence[Any]], Callable[[], object]]]] = {
    "NumPy, forward": (limit_numpy, numpy_backend._PACK_BELOW, numpy_call),
    "PyTorch on CPU, forward and backward": (limit_torch, torch_backend._PACK_BELOW["cpu"], torch_call),
    "JAX without jit, forward and backward": (limit_jax, jax_backend._PACK_BELOW, jax_call),
}


def pack_over_loop(set_limit: Callable[[float], None], call: Callable[[], object], seconds: float) -> float:
    def pack() -> None:
        set_limit(math.inf)
        call()

    def loop() -> None:
        set_limit(0)
        call()

    packed, looped = take_turns([pack, loop], seconds)
    return statistics.median(a / b for a, b in zip(packed, looped, strict=True))


def crossover(ratios: Sequence[float]) -> str:
    """The mean leaf size at which both take equally long, between the sizes measured."""
    if ratios[-1] < 1:
        return f"above {SIZES[-1]}"
    points = list(zip(SIZES, ratios, strict=True))
    for (size, ratio), (next_size, next_ratio) in reversed(list(itertools.pairwise(points))):
        if ratio < 1:
            part = math.log(ratio) / (math.log(ratio) - math.log(next_ratio))
            return f"{size * (next_size / size) ** part:.0f}"
    return f"below {SIZES[0]}"


def run(scale: float) -> list[Row]:
    random = np.random.default_rng(0)
    lines: list[list[str]] = []
    for library, (set_limit, limit, make) in LIBRARIES.items():
        try:
            for count in COUNTS:
                ratios: list[float] = []
                for size in SIZES:
                    call = make([random.standard_normal(size, dtype=np.float32) for _ in range(count)])
                    ratios.append(pack_over_loop(set_limit, call, 0.8 * scale))
                cells = [f"{ratio:.2f}" for ratio in ratios]
                lines.append([f"{library}, {count} leaves", *cells, crossover(ratios), str(limit)])
        finally:
            set_limit(limit)
    table(["elements a leaf:", *map(str, SIZES), "equal at", "limit"], lines)
    return []
