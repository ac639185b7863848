"""The same faults on a cluster: totals are right, failures have a name, and workers that are lost are replaced."""

import dataclasses
import logging
import random
from collections.abc import Iterator

import pytest
import ray

import penalties as pn

from .faults import FAULTS, HEALTHY, Fault, squares
from .resources import back_to, held
from .test_faults import mixed
from .trials import LARGE, SMALL, Part, Trial, attempt, tally

pytestmark = pytest.mark.slow

WELL = list(HEALTHY)
MIXED = 30
# What ends an actor is told in Ray's words; the others' messages are those of any where.
DEADLY = ("exits_badly", "is_killed", "aborts", "hangs", "holds_the_lock", "stops_itself")
# A cluster watches over memory, signals and descriptors of its workers itself.
LEFT_OUT = ("exhausts_memory", "closes_every_descriptor", "sets_an_alarm", "terminates", "reads_address_zero")


def on_a_cluster() -> list[Fault]:
    chosen: list[Fault] = []
    for fault in FAULTS:
        away = "process" in fault.where and not fault.alone and fault.name not in LEFT_OUT
        if away and fault.name in DEADLY:
            chosen.append(dataclasses.replace(fault, says="", timeout=None if fault.timeout is None else 1.0))
        elif away and fault.costs <= 0.3 and fault.outcome is not pn.WorkerLostError:
            chosen.append(fault)
    return chosen


@pytest.fixture(autouse=True)
def nothing_stays(warm: None) -> Iterator[None]:
    """Of ours: Ray keeps some descriptors of its own after a shutdown, and prints what happened to its workers."""
    before = held()
    yield
    more = back_to(before, 30.0)
    assert "processes" not in more
    assert "files" not in more
    assert not [name for name in more.get("threads", ()) if name.startswith("penalties")]


@pytest.fixture
def executor(nothing_stays: None) -> Iterator[pn.Executor]:
    with pn.Executor(max_workers=2, timeout=120.0) as executor:
        yield executor
    assert not ray.is_initialized()


@pytest.fixture(autouse=True)
def ray_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "ray")


@pytest.mark.timeout(600)
def test_each_fault(executor: pn.Executor) -> None:
    rng = random.Random("on a cluster")
    wrong: list[str] = []
    for fault in on_a_cluster():
        library = rng.choice([one for one in ("torch", "numpy") if one in fault.libraries])
        gradient = rng.choice(("none", "wrt", "backward") if library == "torch" else ("none", "wrt"))
        others = [Part(rng.choice(WELL), where, weight=rng.uniform(0.1, 2)) for where in ("inline", "ray", "thread")]
        parts = (others[0], Part(fault, "ray", rng.choice(("raise", "skip")), 0.5), *others[1:])
        trial = Trial(parts, library, gradient, rng.choice((SMALL, LARGE)), rng.getrandbits(32))
        try:
            attempt(executor, trial)
            # Right after anything, a call gives the right number.
            attempt(executor, Trial((Part(squares, "ray"),), "torch", "backward", SMALL, trial.seed))
        except Exception as error:
            wrong.append(f"{trial}: {type(error).__name__}: {error}"[:1000])
    assert not wrong, "\n".join([f"{len(wrong)} went wrong:", *wrong[:20]])
    assert tally["misbehaved"] >= 40


@pytest.mark.timeout(600)
def test_mixed_pipelines(executor: pn.Executor) -> None:
    """Faults on the cluster beside faults everywhere else."""
    rng = random.Random("mixed with a cluster")
    able = {fault.name: fault for fault in on_a_cluster() if fault.costs <= 0.5}
    wrong: list[str] = []
    for _ in range(MIXED):
        trial = mixed(rng, rng.choice(("torch", "numpy")), 0.5)
        parts = tuple(_moved(part, able) if rng.random() < 0.4 else part for part in trial.parts)
        parts += (Part(rng.choice(WELL), "ray", weight=0.5),)
        trial = Trial(parts, trial.library, trial.gradient, trial.size, trial.seed)
        try:
            attempt(executor, trial)
        except Exception as error:
            wrong.append(f"{trial}: {type(error).__name__}: {error}"[:1000])
    assert not wrong, "\n".join([f"{len(wrong)} went wrong:", *wrong[:20]])


def _moved(part: Part, able: dict[str, Fault]) -> Part:
    """The same term on the cluster, if it can be there."""
    if not isinstance(part.fn, Fault):
        return dataclasses.replace(part, where="ray")
    return dataclasses.replace(part, fn=able[part.fn.name], where="ray") if part.fn.name in able else part
