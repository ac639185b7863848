"""How far Python-bound terms in processes speed up with workers: `python -m benchmarks.scaling [--quick]`.

Not part of `python -m benchmarks`: it wants a machine with 16 cores to itself, and stops at the cores that there are.
The speed-up is over the same terms inline, and the efficiency is the speed-up for each worker. Beside it stands what
the machine itself gives: the same loop in as many bare processes, without this library. Cores slow down when all are
busy, and that no pool can help.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

# Before any library starts its threads: terms would compete for the cores with them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import penalties as pn

from .harness import table
from .loops import busy, rounds_for

_WORKERS = (1, 2, 4, 8, 12, 16)
# Divisible by every number of workers, so that none has more to do than another.
_TERMS = 48
_SECONDS = 0.2
_LIMIT = (16, 0.85)
_REPEATS = 5

_BARE = """
import sys
from benchmarks.loops import _loop
rounds, times = map(int, sys.argv[1:])
for line in sys.stdin:
    for _ in range(times):
        _loop(rounds)
    print(flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="terms of a quarter of the time, fewer repeats")
    quick = parser.parse_args().quick
    seconds, repeats = (_SECONDS / 4, 3) if quick else (_SECONDS, _REPEATS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = [count for count in _WORKERS if count <= cores]
    rounds = rounds_for(seconds)
    print(f"{cores} cores; {_TERMS} terms of {1000 * seconds:.0f} ms, {repeats} repeats, medians\n", flush=True)

    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    here, away = (
        pn.Pipeline([pn.Term(busy, name=f"busy_{i}", options={"rounds": rounds}, runs=runs) for i in range(_TERMS)])
        for runs in ("inline", "process")
    )
    inline: list[float] = []
    taken: dict[int, list[float]] = {count: [] for count in workers}
    bare: dict[int, list[float]] = {count: [] for count in workers}
    with ExitStack() as stack:
        executors = {count: stack.enter_context(pn.Executor(max_workers=count, timeout=300.0)) for count in workers}
        lone = {count: stack.enter_context(_Bare(count, rounds, _TERMS // count)) for count in workers}
        for count, executor in executors.items():
            # Warm, and right.
            total = executor.run(away, x).total
            torch.testing.assert_close(total, (x * x).sum() * _TERMS)
            lone[count].run()
        for _ in range(repeats):
            inline.append(_time(lambda: executors[1].run(here, x)))
            for count in workers:
                taken[count].append(_time(lambda count=count: executors[count].run(away, x)))
                bare[count].append(_time(lone[count].run))

    alone = statistics.median(inline)
    lines: list[list[str]] = []
    over = False
    for count in workers:
        median, machine = statistics.median(taken[count]), statistics.median(bare[count])
        efficiency = alone / median / count
        limit = f"at least {_LIMIT[1]:.2f}" if count == _LIMIT[0] else ""
        low = bool(limit) and efficiency < _LIMIT[1]
        over = over or low
        lines.append(
            [
                str(count),
                f"{1000 * median:.0f} ms",
                f"{alone / median:.2f}",
                f"{efficiency:.3f}",
                f"{alone / machine / count:.3f}",
                limit,
                "low" if low else "ok" if limit else "",
            ]
        )
    table(["workers", "time", "speed-up", "efficiency", "bare processes", "limit", ""], lines)
    print(f"\ninline: {1000 * alone:.0f} ms")
    if cores < _LIMIT[0]:
        print(f"The limit is for {_LIMIT[0]} workers; this machine has {cores} cores.")
    return 1 if over else 0


class _Bare:
    """As many processes that only run the loop, started once."""

    def __init__(self, count: int, rounds: int, times: int) -> None:
        command = [sys.executable, "-c", _BARE, str(rounds), str(times)]
        root = Path(__file__).parents[1]
        self.processes = [
            subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]

    def run(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.readline()

    def __enter__(self) -> "_Bare":
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            process.communicate()


def _time(side: Callable[[], object]) -> float:
    start = time.perf_counter()
    side()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
