"""Five Python-bound terms in processes against the same inline, on two cores; a hundred async terms that wait."""

import asyncio
import contextlib
import os
from collections.abc import Iterator

import torch

import penalties as pn

from .harness import Row, compare
from .loops import busy, rounds_for, wait
from .terms import agree

_TERMS = 5
_BUSY = 0.2
_WAITING = 100
_WAIT = 0.1


def run(scale: float) -> list[Row]:
    return [_processes(scale), _awaited(scale)]


def _processes(scale: float) -> Row:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    options = {"rounds": rounds_for(_BUSY)}
    here, away = (
        pn.Pipeline([pn.Term(busy, name=f"busy_{i}", options=options, runs=runs) for i in range(_TERMS)])
        for runs in ("inline", "process")
    )
    # A worker for each term, more than there are cores: the system then shares two cores among five, and all end at
    # about the same time. Two workers would take turns of 2, 2 and 1 terms, which is three times 200 ms for five: 1.67
    # times faster at the very best, while one core rests during the last.
    with _two_cores(), pn.Executor(max_workers=_TERMS) as executor:
        agree(x, here.total, lambda x: executor.run(away, x).total)
        return compare(
            f"{_TERMS} terms of {1000 * _BUSY:.0f} ms, in processes",
            lambda: executor.run(here, x),
            lambda: executor.run(away, x),
            seconds=12.0 * scale,
            unit="ms",
            most_ratio=1 / 1.8,
        )


def _awaited(scale: float) -> Row:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    options = {"seconds": _WAIT}
    pipeline = pn.Pipeline([pn.Term(wait, name=f"wait_{i}", options=options) for i in range(_WAITING)])

    async def gathered() -> None:
        await asyncio.gather(*[wait(x, seconds=_WAIT) for _ in range(_WAITING)])

    with pn.Executor() as executor:
        return compare(
            f"{_WAITING} terms that wait for {1000 * _WAIT:.0f} ms",
            lambda: asyncio.run(gathered()),
            lambda: executor.run(pipeline, x),
            seconds=4.0 * scale,
            unit="ms",
            most=200.0,
        )


@contextlib.contextmanager
def _two_cores() -> Iterator[None]:
    """On two of the cores that there are, and so whatever is started inside."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
