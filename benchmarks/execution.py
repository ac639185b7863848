"""Where a term runs: what an executor, a thread, a process and Ray add to it, and what slow terms gain in parallel.

Both sides of a row go through one executor whose workers are warm, and with `wrt` both take the gradient in the call,
so they differ in nothing but where the term runs.
"""

import asyncio
import contextlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterator

import torch

import penalties as pn

from .harness import Row, compare
from .slow_terms import busy, loops_for, wait
from .terms import FIVES, check_gradients, logprobs

# Where it runs, elements, and the most milliseconds above inline.
RUNS = (("thread", 10_000, 0.1), ("process", 10_000, 1.0), ("process", 1_000_000, 5.0), ("ray", 10_000, 5.0))


def squares(x: torch.Tensor) -> torch.Tensor:
    """A term that is fast at every size, so that what is seen is mostly what running it elsewhere adds."""
    return (x * x).sum()


def run(scale: float) -> list[Row]:
    rows = _inline(scale)
    for runs, elements, limit in RUNS:
        if runs == "ray" and importlib.util.find_spec("ray") is None:
            print("Ray is not installed: its rows are left out\n")
            continue
        # A built-in reaches a worker by its name, an own function by value.
        rows += [_elsewhere(runs, fn, elements, limit, scale) for fn in (pn.l2, squares)]
    return [*rows, *_parallel(scale), _awaited(scale)]


def _inline(scale: float) -> list[Row]:
    """Cheap inline terms run by an executor, against a call of the pipeline."""
    rows: list[Row] = []
    x = logprobs(100, 100)
    with pn.Executor() as executor:
        for five in FIVES:
            pipeline = five.pipeline()
            check_gradients(x, pipeline.total, lambda x, pipeline=pipeline: executor.run(pipeline, x).total)
            row = compare(
                f"5 {five.name} terms inline, 1e4",
                lambda pipeline=pipeline: pipeline(x),
                lambda pipeline=pipeline: executor.run(pipeline, x),
                seconds=5.0 * scale,
                most_more=20.0,
            )
            rows.append(row)
    return rows


def _elsewhere(runs: str, fn: Callable[..., torch.Tensor], elements: int, limit: float, scale: float) -> Row:
    x = torch.randn(elements, generator=torch.Generator().manual_seed(0)).requires_grad_()
    here, away = (pn.Pipeline([pn.Term(fn, runs=where)]) for where in ("inline", runs))
    case = f"{runs}, {fn.__name__}, 1e{round(math.log10(elements))}"
    with pn.Executor() as executor:
        check_gradients(x, here.total, lambda x: executor.run(away, x).total)
        # Until every worker has the term, its libraries and the memory that inputs arrive in.
        for _ in range(max(2, round(50 * scale))):
            executor.run(away, x, wrt="input")
        return compare(
            case,
            lambda: executor.run(here, x, wrt="input"),
            lambda: executor.run(away, x, wrt="input"),
            seconds=6.0 * scale,
            unit="ms",
            most_more=limit,
        )


def _parallel(scale: float) -> list[Row]:
    """Terms that hold the interpreter's lock in processes, against one after another."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # On two cores with a worker for each of five terms the system shares the cores, and all end at about the same time;
    # two workers would take 2, 2 and 1 terms, and one core would rest during the last.
    cases = [(5, 5, min(2, cores), 1 / 1.8)]
    if cores >= 16:
        cases.append((48, 16, 16, 1 / (0.85 * 16)))
    return [_processes(*case, scale) for case in cases]


def _processes(terms: int, workers: int, cores: int, most_ratio: float, scale: float) -> Row:
    seconds = 0.2 if scale else 0.02
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    options = {"loops": loops_for(seconds)}
    here, away = (
        pn.Pipeline([pn.Term(busy, name=f"busy_{i}", options=options, runs=runs) for i in range(terms)])
        for runs in ("inline", "process")
    )
    with _on_cores(cores), pn.Executor(max_workers=workers, timeout=300.0) as executor:
        check_gradients(x, here.total, lambda x: executor.run(away, x).total)
        case = f"{terms} terms of {1000 * seconds:.0f} ms, in parallel on {cores} cores"
        return compare(
            case,
            lambda: executor.run(here, x),
            lambda: executor.run(away, x),
            seconds=12.0 * scale,
            unit="ms",
            most_ratio=most_ratio,
        )


def _awaited(scale: float) -> Row:
    terms, seconds = 100, 0.1
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    pipeline = pn.Pipeline([pn.Term(wait, name=f"wait_{i}", options={"seconds": seconds}) for i in range(terms)])

    async def gathered() -> None:
        await asyncio.gather(*[wait(x, seconds=seconds) for _ in range(terms)])

    with pn.Executor() as executor:
        return compare(
            f"{terms} terms that wait for {1000 * seconds:.0f} ms",
            lambda: asyncio.run(gathered()),
            lambda: executor.run(pipeline, x),
            seconds=4.0 * scale,
            unit="ms",
            most=200.0,
        )


@contextlib.contextmanager
def _on_cores(count: int) -> Iterator[None]:
    """Keep this process, and whatever it starts, on so many of the cores."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
