"""Hours of training with terms in threads, processes and coroutines, some of which fail.

`python -m benchmarks.soak [--minutes 60]` is not part of `python -m benchmarks`; the slow tests run two minutes of it.
Memory, descriptors, threads and processes must be at the end what they were after the first quarter.

Two executors take turns. The workers of the rough one are killed every few seconds, those of the calm one live as long
as the caller: a leak inside a worker shows there, a leak for each worker shows in the caller.
"""

import argparse
import asyncio
import contextlib
import ctypes
import math
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil
import torch

import penalties as pn

from .harness import print_table

MOST_GROWTH = 0.02
"""Of resident memory, of the caller and of its workers together."""
MOST_MORE = 2
"""Descriptors, threads and processes."""

_SAMPLES = 80

_SIZES = (100, 20_000, 200_000)
"""Elements, about: batches are never of one size. The larger ones go to processes through a mapped file."""


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x**2).sum()


async def awaited(x: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(0.002)
    return (x**2).sum()


def remembers(x: torch.Tensor, state: Any) -> pn.Evaluation:
    steps = 1.0 if state is None else state["steps"] + 1.0
    return pn.Evaluation((x**2).sum(), metrics={"steps": steps}, state={"steps": steps, "last": x.detach()[:1000]})


def raises(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("now and then")


def is_nan(x: torch.Tensor) -> torch.Tensor:
    return (x * math.nan).sum()


def dies(x: torch.Tensor) -> torch.Tensor:
    os._exit(1)


def hangs(x: torch.Tensor) -> torch.Tensor:
    time.sleep(30.0)
    return x.sum()


def tarries(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.3)
    return x.sum()


async def waits(x: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(30.0)
    return x.sum()


HEALTHY = [
    pn.Term("l1", 0.1, inputs="x"),
    pn.Term(squares, 0.1, name="thread", runs="thread"),
    pn.Term(squares, 0.1, name="process", runs="process"),
    pn.Term(awaited, 0.1, name="async"),
    pn.Term(remembers, 0.1, inputs="x", runs="process"),
]
FAULTS = [
    pn.Term(raises, name="raises here", on_error="skip"),
    pn.Term(raises, name="raises in a process", runs="process", on_error="skip"),
    pn.Term(raises, name="raises in a thread", runs="thread", on_error="skip"),
    pn.Term(is_nan, name="is NaN in a process", runs="process", on_error="skip"),
    pn.Term(tarries, name="is late in a thread", runs="thread", on_error="skip", timeout=0.1),
    pn.Term(waits, name="waits", on_error="skip", timeout=0.05),
]
"""Those that no worker dies of."""
DEADLY = [
    pn.Term(dies, name="dies", runs="process", on_error="skip"),
    pn.Term(hangs, name="hangs", runs="process", on_error="skip", timeout=0.2),
]


def trim(x: torch.Tensor) -> torch.Tensor:
    """Return free memory to the system: arrays of changing size leave holes, which the allocator keeps."""
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    # Long enough that every worker gets one of them.
    time.sleep(0.02)
    return x.sum()


TRIMS = pn.Pipeline([pn.Term(trim, name=f"trim {worker}", runs="process") for worker in range(2)])


def held(executors: Sequence[pn.Executor]) -> dict[str, float]:
    """What the caller and its workers hold and use."""
    for executor in executors:
        executor.run(TRIMS, {"x": torch.ones(1)})
    trim(torch.ones(1))
    process = psutil.Process()
    below = process.children(recursive=True)
    # The caller's own children serve the pools; the workers are theirs.
    workers = [child.memory_info().rss for child in below if child.ppid() != process.pid]
    return {
        "caller, MB": process.memory_info().rss / 1e6,
        "workers, MB": sum(workers) / 1e6,
        "descriptors": process.num_fds(),
        "threads": threading.active_count(),
        "processes": len(below),
    }


def check(out: Any, x: torch.Tensor, about: str) -> None:
    """Every healthy term is right, every other one was skipped, and so are the total and the gradient."""
    plain = x.detach()
    squared = (plain**2).sum()
    expected = {term.name: squared for term in HEALTHY[1:]} | {HEALTHY[0].name: plain.abs().sum()}
    for name, term in out.terms.items():
        assert (term.value is None) == (name not in expected), f"{name} is {term.value}; {about}"
        if term.value is not None:
            _same(term.value.detach(), expected[name], f"{name}; {about}")
    _same(out.total.detach(), 0.1 * sum(expected.values()), f"the total; {about}")
    _same(x.grad, 0.1 * plain.sign() + 0.8 * plain, f"the gradient; {about}")


def _same(found: Any, expected: Any, about: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, msg=lambda said: f"{about}\n{said}")


def soak(seconds: float, seed: int = 0) -> tuple[int, list[dict[str, float]]]:
    """The number of steps, and what was held at moments during them."""
    drawn = random.Random(seed)
    torch.manual_seed(seed)
    samples: list[dict[str, float]] = []
    steps = 0
    began = time.monotonic()
    weights = [torch.randn(size) for size in _SIZES]
    with pn.Executor(max_workers=2) as calm, pn.Executor(max_workers=2) as rough:
        states: dict[pn.Executor, Any] = {calm: None, rough: None}
        while time.monotonic() - began < seconds:
            executor = drawn.choice((calm, rough))
            terms = [*HEALTHY]
            # A fault every twentieth step: a worker that is killed costs as much as thirty steps.
            if drawn.random() < 0.05:
                faults = FAULTS if executor is calm else FAULTS + DEADLY
                terms.insert(drawn.randint(0, len(terms)), drawn.choice(faults))
            most = drawn.choice(weights)
            x = most[: drawn.randint(len(most) // 2, len(most))].clone().requires_grad_()
            wrt = drawn.choice((None, "x"))
            out: Any = executor.run(pn.Pipeline(terms), {"x": x}, wrt=wrt, state=states[executor])
            out.total.backward()
            check(out, x, f"step {steps}, wrt={wrt}, {[term.name for term in terms]}")
            states[executor] = out.state
            del out
            steps += 1
            if time.monotonic() - began > len(samples) * seconds / _SAMPLES:
                with contextlib.suppress(psutil.NoSuchProcess):
                    samples.append(held((calm, rough)))
    return steps, samples


def growth(samples: Sequence[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """The medians of each in the second quarter and in the last."""
    quarter = len(samples) // 4
    return {
        key: (
            statistics.median(sample[key] for sample in samples[quarter : 2 * quarter]),
            statistics.median(sample[key] for sample in samples[-quarter:]),
        )
        for key in samples[0]
    }


def grown(samples: Sequence[dict[str, float]]) -> list[str]:
    """What is more at the end than it may be."""
    found: list[str] = []
    for key, (early, late) in growth(samples).items():
        most = early * (1 + MOST_GROWTH) if key.endswith("MB") else early + MOST_MORE
        if late > most:
            found.append(f"{key}: {early:.1f} in the second quarter, {late:.1f} in the last")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    steps, samples = soak(60.0 * arguments.minutes, arguments.seed)
    rows = [
        [key, f"{early:.1f}", f"{late:.1f}", f"{100 * (late / early - 1):+.1f} %" if early else "-"]
        for key, (early, late) in growth(samples).items()
    ]
    print(f"{steps} steps in {arguments.minutes:g} minutes")
    print_table(["held", "second quarter", "last quarter", "growth"], rows)
    over = grown(samples)
    for line in over:
        print(f"grown: {line}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
