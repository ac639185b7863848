"""A campaign of injected faults: `python -m tests.slow.campaign [--faults 10000] [--seed 0] [--without-ray]`.

Every kind of fault runs in every way that it can, alone among healthy terms and mixed with others, drawn from a seed.
After each trial everything is looked at: whether the run came back in time, whether totals, gradients and errors are
right, whether the next run is, and whether anything is held that was not before. The table at the end says how often
not.
"""

import argparse
import contextlib
import dataclasses
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import penalties as pn

from . import resources
from .faults import EVERYWHERE, FAULTS, HEALTHY, SURROUNDINGS, Fault, line, released
from .trials import LARGE, SMALL, TIMEOUT, Part, Trial, attempt, probe

LATEST = 2.0
"""Seconds past its longest timeout after which a run hangs."""
GIVEN_UP = 60.0
"""Seconds after that, after which it is given up."""
WAYS = (*EVERYWHERE, "ray", "system")
LEAKS = ("processes", "descriptors", "threads", "shared memory", "bytes")
MOST = 9
"""Terms in a trial."""
ON_RAY = 0.1
"""Of the faults that are drawn, how many run on a cluster, or beside one."""

tables: list[str] = []
"""Of campaigns that the tests have made, printed at their end."""


class Tally:
    """What was injected, and what went wrong."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.verbose = verbose
        self.faults: Counter[str] = Counter()
        """By the way that they ran in."""
        self.kinds: set[tuple[str, str]] = set()
        self.trials: int = 0
        self.wrong: Counter[tuple[str, str]] = Counter()
        """By way, and by what it was: hangs, each kind of leak, totals."""
        self.details: list[str] = []

    def note(self, trial: Trial) -> None:
        """A trial that was made."""
        self.trials += 1
        self.kinds |= set(trial.faults)
        self.faults.update(way for _, way in trial.faults)

    def blame(self, trial: Trial, what: str, detail: object) -> None:
        """Something that went wrong in it."""
        way = trial.faults[0][1] if trial.faults else "inline"
        self.wrong[way, what] += 1
        self.details.append(f"{what}: {detail}; {trial}"[:2000])
        if self.verbose:
            print(self.details[-1], file=sys.stderr, flush=True)

    def table(self) -> str:
        """A row for each way, in Markdown."""
        columns = ("hangs", *LEAKS, "totals")
        heads = ["runs", "kinds", "faults", "hangs past timeout + 2 s", *(f"leaked {what}" for what in LEAKS)]
        rows = [[*heads, "wrong totals"], ["---"] * (len(heads) + 1)]
        for way in WAYS:
            kinds = sum(where == way for _, where in self.kinds)
            wrong = [self.wrong[way, what] for what in columns]
            rows.append([way, *map(str, (kinds, self.faults[way], *wrong))])
        sums = [sum(self.wrong[way, what] for way in WAYS) for what in columns]
        rows.append(["all", *map(str, (len(self.kinds), self.faults.total(), *sums))])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def drawn(seed: int, faults: int, *, ray: bool) -> Iterator[Trial]:
    """Trials with so many faults in them: first each kind in each way alone, as often as fits, then mixtures."""
    rng = random.Random(seed)
    left = faults
    every = [(fault.on(way), way) for fault in FAULTS for way in fault.ways if (way == "ray") == ray]
    rng.shuffle(every)
    for fault, way in every:
        if left > 0:
            yield _alone(rng, fault, way)
            left -= 1
    if not ray:
        for surrounding in SURROUNDINGS:
            if left > 0:
                yield dataclasses.replace(_healthy(rng), surrounding=surrounding)
                left -= 1
    while left > 0:
        if not ray and rng.random() < 0.01:
            trial = dataclasses.replace(_healthy(rng), surrounding=rng.choice(SURROUNDINGS))
        elif rng.random() < 0.5:
            trial = _alone(rng, *_cheaply(rng, every))
        else:
            trial = _mixed(rng, every, most=min(left, 3), ray=ray)
        left -= len(trial.faults)
        yield trial


def _cheaply(rng: random.Random, every: Sequence[tuple[Fault, str]]) -> tuple[Fault, str]:
    """One of them; those that cost seconds now and then."""
    return rng.choices(every, [1 / (1 + 10 * fault.costs) for fault, _ in every])[0]


def _part(rng: random.Random, fault: Fault, way: str) -> Part:
    return Part(fault, way, rng.choice(("raise", "skip")), rng.uniform(0.1, 2))


def _neighbour(rng: random.Random, ways: Sequence[str]) -> Part:
    return Part(rng.choice(list(HEALTHY)), rng.choice(ways), rng.choice(("raise", "skip")), rng.uniform(0.1, 2))


def _trial(rng: random.Random, parts: Sequence[Part], libraries: Sequence[str]) -> Trial:
    # A worker that was killed takes more than a second to load JAX again.
    library = rng.choices(libraries, [{"torch": 6, "numpy": 4, "jax": 1}[one] for one in libraries])[0]
    gradient = rng.choice(("none", "wrt", "backward") if library == "torch" else ("none", "wrt"))
    return Trial(tuple(parts), library, gradient, rng.choice((SMALL, LARGE)), rng.getrandbits(32))


def _alone(rng: random.Random, fault: Fault, way: str) -> Trial:
    """A fault among healthy terms: there too, unless it harms them, as documented."""
    ways = [other for other in EVERYWHERE if other != way] if fault.alone else [*EVERYWHERE, way]
    parts = [_neighbour(rng, ways), _part(rng, fault, way), _neighbour(rng, ways)]
    return _trial(rng, parts, [one for one in fault.libraries if way != "ray" or one != "jax"])


def _mixed(rng: random.Random, every: Sequence[tuple[Fault, str]], most: int, *, ray: bool) -> Trial:
    """Several faults among healthy terms; on a cluster also such as are elsewhere."""
    able = [(fault, way) for fault, way in every if not fault.alone]
    if ray:
        able += [(fault, way) for fault in FAULTS for way in fault.where if not fault.alone and fault.costs <= 0.3]
    chosen = [_cheaply(rng, able) for _ in range(rng.randint(1, most))]
    parts = [_neighbour(rng, [*EVERYWHERE, "ray"] if ray else EVERYWHERE) for _ in range(rng.randint(1, 5))]
    for fault, way in chosen:
        parts.insert(rng.randint(0, len(parts)), _part(rng, fault, way))
    libraries = [one for one in ("torch", "numpy", "jax") if all(one in fault.libraries for fault, _ in chosen)]
    return _trial(rng, parts, [one for one in libraries if one != "jax" or not ray])


def _healthy(rng: random.Random) -> Trial:
    ways = [*EVERYWHERE, *rng.choices(EVERYWHERE, k=3)]
    rng.shuffle(ways)
    return _trial(rng, [_neighbour(rng, [way]) for way in ways], ["torch", "numpy"])


class Campaign:
    """Trials one after another, on one executor as long as that lasts."""

    def __init__(self, tally: Tally, *, ray: bool) -> None:
        self.tally = tally
        self.ways: tuple[str, ...] = ("ray",) if ray else EVERYWHERE
        self._executor: pn.Executor | None = None
        self._before: resources.Use | None = None

    def run(self, trials: Iterator[Trial]) -> None:
        """Make them."""
        try:
            for trial in trials:
                self._run(trial)
        finally:
            self._renew(None)

    def _run(self, trial: Trial) -> None:
        executor, before = self._executor, self._before
        if executor is None or before is None:
            executor, before = self._begin()
        self.tally.note(trial)
        well = self._within(trial, lambda: attempt(executor, trial))
        well &= self._within(trial, lambda: probe(executor, trial.seed, self.ways))
        released.set()
        more = resources.settled(before)
        for what, count in more.items():
            # Ray keeps descriptors, threads and processes of its own, which come and go; see `conftest.py`.
            if "ray" not in self.ways or what in ("shared memory", "bytes"):
                self.tally.blame(trial, what, f"{count} more")
        released.clear()
        if not well or more or any(isinstance(part.fn, Fault) and part.fn.alone for part in trial.parts):
            self._renew(trial)

    def _begin(self) -> tuple[pn.Executor, resources.Use]:
        """An executor on which everything has run that stays."""
        resources.keep_no_free_memory()
        self._executor = executor = pn.Executor(max_workers=2, timeout=TIMEOUT if self.ways == EVERYWHERE else 30.0)
        for way in {*self.ways, "async", "thread", "process"}:
            parts = [Part(line, way) for _ in range(MOST)]
            attempt(executor, Trial(tuple(parts), "torch", "wrt", LARGE))
        attempt(executor, Trial((Part(line, "inline"),), "jax", "wrt"))
        # Each thread may keep an event loop, and each worker a slot, as long as the executor lasts.
        loops = 3 * sum(thread.name == "penalties-term" for thread in threading.enumerate())
        used = resources.use()
        self._before = before = dataclasses.replace(
            used, descriptors=used.descriptors + loops, files=used.files + executor.max_workers
        )
        return executor, before

    def _renew(self, trial: Trial | None) -> None:
        """The next trial has another executor."""
        executor, self._executor = self._executor, None
        if executor is not None:
            closing = threading.Thread(target=executor.close, daemon=True)
            closing.start()
            closing.join(GIVEN_UP)
            if closing.is_alive() and trial is not None:
                self.tally.blame(trial, "hangs", "closing")

    def _within(self, trial: Trial, function: Any) -> bool:
        """Call it; False where it does not come back in time, or is wrong."""
        errors: list[BaseException] = []

        def call() -> None:
            try:
                function()
            except BaseException as error:
                errors.append(error)

        timeout = trial.timeout if self.ways == EVERYWHERE else max(trial.timeout, 30.0)
        start = time.monotonic()
        calling = threading.Thread(target=call, name="trial", daemon=True)
        calling.start()
        calling.join(timeout + GIVEN_UP)
        taken = time.monotonic() - start
        if calling.is_alive() or taken > timeout + LATEST:
            self.tally.blame(trial, "hangs", f"{taken:.1f} s")
        for error in errors:
            self.tally.blame(trial, "totals", f"{type(error).__name__}: {error}")
        return not errors and not calling.is_alive()


def campaign(tally: Tally, faults: int, seed: int, *, ray: bool = False) -> None:
    """So many faults, which are the same for the same seed."""
    Campaign(tally, ray=ray).run(drawn(seed, faults, ray=ray))


@contextlib.contextmanager
def _terms_print_nothing() -> Iterator[None]:
    """Some of them print megabytes, here and in workers, which inherit where it goes; warnings are still shown."""
    sys.stdout.flush()
    shown = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(shown, 1)
        os.close(shown)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slow.campaign", description=__doc__)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("PENALTIES_CAMPAIGN_SEED", "0")))
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="say what goes wrong when it does")
    arguments = parser.parse_args()
    resources.mark()
    tally, start = Tally(verbose=arguments.verbose), time.monotonic()
    on_ray = 0 if arguments.without_ray else round(ON_RAY * arguments.faults)
    # Whoever interrupts it sees what there is.
    with contextlib.suppress(KeyboardInterrupt), _terms_print_nothing():
        campaign(tally, arguments.faults - on_ray, arguments.seed)
        if on_ray:
            campaign(tally, on_ray, arguments.seed, ray=True)
    print("\n".join(tally.details[:50]))
    print(f"\nseed {arguments.seed}: {tally.trials} trials in {(time.monotonic() - start) / 60:.1f} minutes\n")
    print(tally.table())
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
