"""Hours of training with terms everywhere, some of which fail: `python -m benchmarks.soak [--minutes 60]`.

Not part of `python -m benchmarks`: it takes an hour. Memory, descriptors, threads and blocks of shared memory are to be
at the end what they were after the first quarter.
"""

import argparse
import asyncio
import os
import random
import statistics
import threading
import time
from typing import Any

import psutil
import torch

import penalties as pn

from .harness import table

MOST_GROWTH = 0.02
"""Of resident memory, of the caller and of its workers."""

_SIZES = (100, 20_000, 200_000)


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x**2).sum()


async def awaited(x: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(0.002)
    return (x**2).sum()


def raises(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("now and then")


def dies(x: torch.Tensor) -> torch.Tensor:
    os._exit(1)


def hangs(x: torch.Tensor) -> torch.Tensor:
    time.sleep(30.0)
    return x.sum()


async def waits(x: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(30.0)
    return x.sum()


HEALTHY = [
    pn.Term("l1", 0.1, inputs="x"),
    pn.Term(squares, 0.1, name="thread", runs="thread"),
    pn.Term(squares, 0.1, name="process", runs="process"),
    pn.Term(awaited, 0.1, name="async"),
]
FAULTS = [
    pn.Term(raises, name="raises here", on_error="skip"),
    pn.Term(raises, name="raises in a process", runs="process", on_error="skip"),
    pn.Term(raises, name="raises in a thread", runs="thread", on_error="skip"),
    pn.Term(dies, name="dies", runs="process", on_error="skip"),
    pn.Term(hangs, name="hangs", runs="process", on_error="skip", timeout=0.2),
    pn.Term(waits, name="waits", on_error="skip", timeout=0.05),
]


def held(executor: pn.Executor) -> dict[str, float]:
    """What the caller and its workers hold."""
    process = psutil.Process()
    children = process.children(recursive=True)
    place: Any = executor.place(HEALTHY[2])
    resident = [child.memory_info().rss for child in children if child.is_running()]
    return {
        "caller, MB": process.memory_info().rss / 1e6,
        "workers, MB": statistics.median(sorted(resident)[-2:]) / 1e6 if resident else 0.0,
        "descriptors": process.num_fds(),
        "threads": threading.active_count(),
        "processes": len(children),
        "blocks": len(place.blocks),
    }


def soak(seconds: float, seed: int = 0) -> tuple[int, list[dict[str, float]]]:
    """How many steps were made, and what was held at a hundred moments."""
    drawn = random.Random(seed)
    torch.manual_seed(seed)
    samples: list[dict[str, float]] = []
    steps = 0
    began = time.monotonic()
    weights = {size: torch.randn(size, requires_grad=True) for size in _SIZES}
    with pn.Executor(max_workers=2) as executor:
        while time.monotonic() - began < seconds:
            terms = [*HEALTHY]
            # A fault every twentieth step: a worker that is killed costs as much as thirty steps.
            if drawn.random() < 0.05:
                terms.append(drawn.choice(FAULTS))
            x = weights[drawn.choice(_SIZES)]
            wrt = drawn.choice((None, "x"))
            out: Any = executor.run(pn.Pipeline(terms), {"x": x}, wrt=wrt)
            out.total.backward()
            expected = 0.1 * x.detach().abs().sum() + 0.3 * (x.detach() ** 2).sum()
            torch.testing.assert_close(out.total.detach(), expected, rtol=1e-4, atol=1e-4)
            x.grad = None
            del out
            steps += 1
            if time.monotonic() - began > len(samples) * seconds / 100:
                samples.append(held(executor))
    return steps, samples


def growth(samples: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """The medians of each in the second quarter and in the last."""
    quarter = len(samples) // 4
    return {
        key: (
            statistics.median(sample[key] for sample in samples[quarter : 2 * quarter]),
            statistics.median(sample[key] for sample in samples[-quarter:]),
        )
        for key in samples[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes = parser.parse_args().minutes
    steps, samples = soak(60.0 * minutes)
    rows = [
        [key, f"{early:.1f}", f"{late:.1f}", f"{100 * (late / early - 1):+.1f} %" if early else "-"]
        for key, (early, late) in growth(samples).items()
    ]
    print(f"{steps} steps in {minutes:g} minutes")
    table(["held", "second quarter", "last quarter", "growth"], rows)


if __name__ == "__main__":
    main()
