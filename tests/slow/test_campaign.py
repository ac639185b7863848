"""Two thousand injected faults: every total is right, every run comes back, and nothing stays behind."""

import logging
import os
import random
from collections.abc import Iterator

import pytest

from . import resources
from .campaign import ON_RAY, WAYS, Tally, campaign, drawn, tables
from .faults import EVERYWHERE, FAULTS, SURROUNDINGS

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("PENALTIES_CAMPAIGN_SEED", "0"))
PRINTED_BY_OTHERS = frozenset(("Error in cpuinfo: failed to parse processor information from /proc/cpuinfo",))
"""By PyTorch, where a fault took the descriptors with which it would look at the processor."""
PARTS = 4
FAULTS_IN_ALL = 2000


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    """Of all parts together; the table is printed at the end of the tests."""
    tally = Tally()
    yield tally
    tables.append(f"seed {SEED}: {tally.trials} trials\n{tally.table()}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_faults_in_every_way(tally: Tally, part: int) -> None:
    campaign(tally, round((1 - ON_RAY) * FAULTS_IN_ALL / PARTS), SEED + part)
    assert not tally.wrong, "\n".join(tally.details[:20])


class TestOnRay:
    @pytest.fixture(autouse=True)
    def nothing_stays(self, warm: None, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        """Of ours: Ray keeps some descriptors of its own after a shutdown, and prints what happened to its workers."""
        caplog.set_level(logging.CRITICAL, "ray")
        before = resources.held()
        yield
        more = resources.back_to(before, 30.0)
        assert "processes" not in more
        assert "files" not in more
        assert not [name for name in more.get("threads", ()) if name.startswith("penalties")]

    @pytest.mark.timeout(900)
    def test_faults_on_a_cluster(self, tally: Tally) -> None:
        campaign(tally, round(ON_RAY * FAULTS_IN_ALL), SEED, ray=True)
        assert not tally.wrong, "\n".join(tally.details[:20])


class TestDrawing:
    @pytest.mark.parametrize("ray", [False, True])
    def test_a_seed_draws_the_same_trials(self, ray: bool) -> None:
        first, second, other = (list(drawn(seed, 500, ray=ray)) for seed in (3, 3, 4))
        assert first == second
        assert first != other
        assert sum(len(trial.faults) for trial in first) == 500

    def test_every_kind_is_drawn_in_every_way(self) -> None:
        trials = [trial for ray in (False, True) for trial in drawn(random.randrange(1000), 500, ray=ray)]
        found = {kind for trial in trials for kind in trial.faults}
        assert found >= {(fault.name, way) for fault in FAULTS for way in fault.ways}
        assert found >= {(one.name, "system") for one in SURROUNDINGS}
        assert {way for _, way in found} == set(WAYS)
        assert len({way for trial in trials for part in trial.parts for way in (part.where,)}) == len(EVERYWHERE) + 1
