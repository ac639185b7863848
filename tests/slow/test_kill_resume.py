"""Runs that are killed at any moment, and go on to the weights and the log of one that was not."""

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penalties.app.config import load
from penalties.app.runs.log import records
from tests.app.stand_ins import comparable, write_config

from .forks import Forks

STEPS = 12
KILLS = 50
SEED = 2026


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks(tmp_path_factory.mktemp("forks") / "errors.txt") as forks:
        yield forks


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = write_config(tmp_path_factory.mktemp("config"), steps=STEPS, checkpoint_every=3, eval_every=4)
    return load(path, ["model.rank=2"]).to_dict()


class Unbroken:
    """A run that nothing happened to."""

    def __init__(self, forks: Forks, config: dict[str, Any], folder: Path) -> None:
        began = time.monotonic()
        assert forks.run(config, folder) == 0
        self.seconds = time.monotonic() - began
        self.log = comparable(list(records(folder / "metrics.jsonl")))
        self.weights = _weights(folder)

    def is_equal(self, folder: Path) -> bool:
        return _weights(folder) == self.weights and comparable(list(records(folder / "metrics.jsonl"))) == self.log


def _weights(folder: Path) -> dict[str, bytes]:
    """The adapter and the optimizer, byte by byte, and what the terms remember."""
    last = folder / "checkpoints" / f"{STEPS:06d}"
    return {path.name: path.read_bytes() for path in sorted(last.rglob("*.safetensors"))}


@pytest.fixture(scope="module")
def unbroken(forks: Forks, config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    found = Unbroken(forks, config, tmp_path_factory.mktemp("unbroken") / "run")
    assert len(found.weights) == 3
    assert sum(record["kind"] == "'step'" for record in found.log) == STEPS
    return found


def test_two_unbroken_runs_are_equal(forks: Forks, config: dict[str, Any], unbroken: Unbroken, tmp_path: Path) -> None:
    assert forks.run(config, tmp_path / "run") == 0
    assert unbroken.is_equal(tmp_path / "run")


@pytest.mark.timeout(1800)
def test_a_run_killed_at_any_moment_goes_on_to_the_same_end(
    forks: Forks, config: dict[str, Any], unbroken: Unbroken, tmp_path: Path
) -> None:
    draw = random.Random(SEED)
    killed = 0
    at: list[int] = []
    for number in range(KILLS):
        folder = tmp_path / f"run-{number}"
        resume = False
        # Once; every fifth run again and again, as on a machine that is taken away.
        for _ in range(4 if number % 5 == 0 else 1):
            status = forks.run(config, folder, resume=resume, after=draw.uniform(0.0, unbroken.seconds))
            assert status in (0, -signal.SIGKILL)
            killed += status != 0
            resume = True
        at.append(sum(record["kind"] == "step" for record in records(folder / "metrics.jsonl")))
        assert forks.run(config, folder, resume=True) == 0, f"kill {number}: it could not go on"
        assert unbroken.is_equal(folder), f"kill {number}: another end"
    assert killed >= KILLS
    # Before the first step, after the last one and between: it was not one and the same moment.
    assert len(set(at)) > STEPS // 2


@pytest.mark.timeout(1800)
def test_a_run_killed_between_any_two_writes_goes_on_to_the_same_end(
    forks: Forks, config: dict[str, Any], unbroken: Unbroken, tmp_path: Path
) -> None:
    number = 1
    while (status := forks.run(config, tmp_path / f"run-{number}", at=number)) != 0:
        folder = tmp_path / f"run-{number}"
        assert status == -signal.SIGKILL
        assert forks.run(config, folder, resume=True) == 0, f"write {number}: it could not go on"
        assert unbroken.is_equal(folder), f"write {number}: another end"
        shutil.rmtree(folder)
        number += 1
    # All of them, from the folder of the run to the last word in its log.
    assert number > 100
