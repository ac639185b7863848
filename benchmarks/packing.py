"""Where one flat array of a list's leaves stops being faster than a loop over them: time(pack) / time(loop) of l1.

Measured twice: with memory that goes back to the system when freed, as by default, where the flat array costs page
faults as soon as it is large in all; and with memory that is kept, as in a process that has used much before.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np
import torch

import penalties
from penalties.backends import jax as jax_backend
from penalties.backends import numpy as numpy_backend
from penalties.backends import torch as torch_backend

from .harness import Row, keep_memory, table, take_turns

SIZES = (64, 256, 1024, 4096, 8192, 16384, 65536)
COUNTS = (4, 64)


def numpy_call(leaves: Sequence[np.ndarray]) -> Callable[[], object]:
    return lambda: penalties.l1(leaves)


def torch_call(leaves: Sequence[np.ndarray]) -> Callable[[], object]:
    tensors = [torch.from_numpy(leaf).requires_grad_() for leaf in leaves]
    return lambda: torch.autograd.grad(penalties.l1(tensors), tensors)


def jax_call(leaves: Sequence[np.ndarray]) -> Callable[[], object]:
    arrays = [jax.numpy.asarray(leaf) for leaf in leaves]
    gradient = jax.grad(penalties.l1)
    return lambda: jax.block_until_ready(gradient(arrays))


LIBRARIES: dict[str, tuple[ModuleType, Callable[[Sequence[np.ndarray]], Callable[[], object]]]] = {
    "NumPy": (numpy_backend, numpy_call),
    "PyTorch, backward too": (torch_backend, torch_call),
    "JAX without jit, backward too": (jax_backend, jax_call),
}


def pack_over_loop(backend: Any, call: Callable[[], object], seconds: float) -> float:
    """The ratio of the two ways, whatever rule the backend itself chooses by."""
    rule = backend.packs

    def pack() -> None:
        backend.packs = always
        call()

    def loop() -> None:
        backend.packs = never
        call()

    try:
        packed, looped = take_turns([pack, loop], seconds)
    finally:
        backend.packs = rule
    return statistics.median(a / b for a, b in zip(packed, looped, strict=True))


def always(leaves: Sequence[Any]) -> bool:
    return True


def never(leaves: Sequence[Any]) -> bool:
    return False


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


def measure(suffix: str, seconds: float) -> list[list[str]]:
    random = np.random.default_rng(0)
    lines: list[list[str]] = []
    for (library, (backend, make)), count in itertools.product(LIBRARIES.items(), COUNTS):
        ratios: list[float] = []
        for size in SIZES:
            call = make([random.standard_normal(size, dtype=np.float32) for _ in range(count)])
            ratios.append(pack_over_loop(backend, call, seconds))
        lines.append([f"{library}, {count} leaves{suffix}", *(f"{ratio:.2f}" for ratio in ratios), crossover(ratios)])
    return lines


def run(scale: float) -> list[Row]:
    lines = measure("", 0.4 * scale)
    keep_memory()
    lines += measure(", memory kept", 0.4 * scale)
    table(["elements a leaf:", *map(str, SIZES), "equal at"], lines)
    return []
