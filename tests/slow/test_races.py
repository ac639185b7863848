"""Terms that end, workers that die and callers that come at the worst of moments."""

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import penalties as pn

from . import resources
from .faults import hangs, squares
from .trials import probe, term

pytestmark = pytest.mark.slow

X = torch.ones(20_000, dtype=torch.float64)


def test_terms_that_take_about_their_timeout(executor: pn.Executor) -> None:
    """Late or not, each time: no neighbour is lost, and nothing stalls."""
    rng = random.Random("about")
    probe(executor)
    late = 0

    def about(x: Any, seconds: Any) -> Any:
        time.sleep(seconds)
        return squares(x)

    for _ in range(60):
        seconds = 0.05 + rng.uniform(-0.004, 0.004)
        terms = [pn.Term(about, runs="process", timeout=0.05, on_error="skip", inputs=("x", "seconds"))]
        terms += [pn.Term(squares, name=f"well_{i}", runs="process", timeout=10.0) for i in range(4)]
        start = time.monotonic()
        out = executor.run(pn.Pipeline(terms), {"x": X, "seconds": seconds})
        assert time.monotonic() - start < 12
        late += out["about"].error is not None
        well = [float(out[f"well_{i}"].value) for i in range(4)]
        assert well == [20_000.0] * 4
    assert late > 0


def test_callers_in_several_threads() -> None:
    wrong: list[str] = []

    def exits(x: Any) -> Any:
        os._exit(3)

    def caller(number: int, executor: pn.Executor) -> None:
        rng = random.Random(number)
        for step in range(15):
            x = torch.full((20_000,), float(step + number), dtype=torch.float64)
            fault = rng.choice((exits, hangs, squares))
            terms = [
                term(squares, "process"),
                pn.Term(fault, name="fault", runs="process", timeout=0.1 if fault is hangs else None, on_error="skip"),
                term(squares, "thread"),
                term(squares, "async"),
            ]
            try:
                out = executor.run(pn.Pipeline(terms), {"x": x})
                found = [float(one.value) for one in out if one.name != "fault"]
                assert found == [20_000.0 * (step + number) ** 2] * 3, found
                assert (out["fault"].error is None) == (fault is squares)
            except Exception as error:
                wrong.append(f"caller {number}, step {step}, {fault.__name__}: {error!r}")

    with pn.Executor(max_workers=2) as executor:
        callers = [threading.Thread(target=caller, args=(number, executor)) for number in range(4)]
        for one in callers:
            one.start()
        for one in callers:
            one.join()
        assert not wrong, "\n".join(wrong)
        probe(executor)


def test_a_worker_that_dies_while_it_answers(executor: pn.Executor, tmp_path: Path) -> None:
    """Somewhere between evaluating and sending: neighbours that may run again give their numbers, and soon."""
    rng = random.Random("answering")
    pid = tmp_path / "pid"

    def large(x: Any, seconds: Any, state: Any) -> Any:
        pid.write_text(str(os.getpid()))
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return pn.Evaluation(x.sum(), state=b"x" * (50 << 20))

    for _ in range(12):
        terms = [pn.Term(large, runs="process", on_error="skip", inputs=("x", "seconds"))]
        terms += [pn.Term(squares, name=f"well_{i}", runs="process", idempotent=True) for i in range(3)]
        start = time.monotonic()
        out = executor.run(pn.Pipeline(terms), {"x": X, "seconds": rng.uniform(0.02, 0.25)})
        assert time.monotonic() - start < 20
        well = [float(out[f"well_{i}"].value) for i in range(3)]
        assert well == [20_000.0] * 3
        # The one that was to die may do so later than it answered, under a neighbour that has already run again once.
        assert resources.gone([int(pid.read_text())])
    probe(executor)


def test_workers_that_are_killed_while_they_rest(executor: pn.Executor) -> None:
    for delay in (0.0, 0.1):
        probe(executor)
        workers, _ = resources.workers()
        _kill(workers)
        time.sleep(delay)
        probe(executor)


@pytest.mark.parametrize("with_workers", [False, True])
def test_a_broker_that_is_killed_while_it_rests(executor: pn.Executor, with_workers: bool) -> None:
    """Another is started. A worker may begin a term before it notices, and takes the term with it, which runs again."""
    for delay in (0.0, 0.1):
        probe(executor)
        workers, broker = resources.workers()
        locks = {
            name
            for name in os.listdir("/dev/shm")
            if name.startswith("sem.") and any(f"shm/{name}" in resources.mapped(pid) for pid in broker)
        }
        _kill([*(workers if with_workers else ()), *broker])
        time.sleep(delay)
        probe(executor, idempotent=True)
        assert resources.gone(workers)
        probe(executor)
        end = time.monotonic() + 20
        while locks & set(os.listdir("/dev/shm")):
            assert time.monotonic() < end, f"still in /dev/shm: {locks}"
            time.sleep(0.05)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
