"""Every total is right, every failure has a name, and every executor goes on, whatever the terms do."""

import random

import pytest

import penalties as pn

from .faults import EVERYWHERE, FAULTS, HEALTHY, Fault
from .trials import LARGE, SMALL, Part, Trial, attempt_all, tally

pytestmark = pytest.mark.slow

WELL = list(HEALTHY)
EACH, MIXED, MIXED_IN_JAX = 8, 200, 20
"""How often a fault that costs nothing runs in each where, and how many pipelines are mixed."""


def gradients_of(library: str) -> tuple[str, ...]:
    return ("none", "wrt", "backward") if library == "torch" else ("none", "wrt")


def healthy(rng: random.Random) -> Part:
    return Part(rng.choice(WELL), rng.choice(EVERYWHERE), rng.choice(("raise", "skip")), rng.uniform(0.1, 2))


def ways(fault: Fault, rng: random.Random, most: int) -> list[tuple[str, str, str]]:
    """Libraries, gradients and policies to try it with: the cheaper it is, the more."""
    every = [
        (library, gradient, on_error)
        for library in ("torch", "numpy")
        if library in fault.libraries
        for gradient in gradients_of(library)
        for on_error in ("raise", "skip")
    ]
    return rng.sample(every, min(len(every), max(1, round(most / (1 + 5 * fault.costs)))))


@pytest.mark.parametrize("where", EVERYWHERE)
def test_each_fault_wherever_it_may_run(executor: pn.Executor, where: str) -> None:
    rng = random.Random(f"each {where}")
    trials: list[Trial] = []
    for fault in FAULTS:
        if where not in fault.where or fault.alone:
            continue
        for library, gradient, on_error in ways(fault, rng, EACH):
            parts = (healthy(rng), Part(fault, where, on_error, rng.uniform(0.1, 2)), healthy(rng))
            trials.append(Trial(parts, library, gradient, rng.choice((SMALL, LARGE)), rng.getrandbits(32)))
    rng.shuffle(trials)
    attempt_all(executor, trials)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.alone], ids=lambda fault: fault.name)
def test_faults_that_harm_others_there(executor: pn.Executor, fault: Fault) -> None:
    rng = random.Random(fault.name)
    (where,) = fault.where
    trials: list[Trial] = []
    for library, gradient, on_error in ways(fault, rng, EACH):
        others = [Part(rng.choice(WELL), other) for other in EVERYWHERE if other != where]
        parts = (others[0], Part(fault, where, on_error), *others[1:])
        trials.append(Trial(parts, library, gradient, SMALL, rng.getrandbits(32)))
    attempt_all(executor, trials)


def mixed(rng: random.Random, library: str, most_costs: float) -> Trial:
    """A pipeline of terms that are well and some that are not, anywhere."""
    able = [fault for fault in FAULTS if library in fault.libraries and not fault.alone and fault.costs <= most_costs]
    # The dear ones now and then.
    chances = [1 / (1 + 5 * fault.costs) for fault in able]
    parts = [healthy(rng) for _ in range(rng.randint(1, 5))]
    for fault in rng.choices(able, chances, k=rng.randint(1, 3)):
        part = Part(fault, rng.choice(fault.where), rng.choice(("raise", "skip")), rng.uniform(0.1, 2))
        parts.insert(rng.randint(0, len(parts)), part)
    return Trial(
        tuple(parts), library, rng.choice(gradients_of(library)), rng.choice((SMALL, LARGE)), rng.getrandbits(32)
    )


@pytest.mark.parametrize("seed", range(2))
def test_mixed_pipelines(executor: pn.Executor, seed: int) -> None:
    rng = random.Random(f"mixed {seed}")
    attempt_all(executor, (mixed(rng, rng.choice(("torch", "torch", "numpy")), 6.0) for _ in range(MIXED // 2)))


def test_mixed_pipelines_in_jax(executor: pn.Executor) -> None:
    # A worker that was killed takes more than a second to load JAX again.
    rng = random.Random("mixed in JAX")
    attempt_all(executor, (mixed(rng, "jax", 0.3) for _ in range(MIXED_IN_JAX)))


def test_two_thousand_evaluations(request: pytest.FixtureRequest) -> None:
    """Of all of the above together; where some of them were left out, this says nothing."""
    here = [item for item in request.session.items if item.path == request.path]
    if len(here) < len(EVERYWHERE) + 2 + 2 + 1 + 1:
        pytest.skip("only some tests were chosen")
    assert tally["evaluated"] >= 2000
    assert tally["misbehaved"] >= 1000
