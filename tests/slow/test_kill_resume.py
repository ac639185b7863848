"""Commands that are killed, or whose disk or clock fails: they are resumed to the weights and the log of any other.

`PENALTIES_KILLS` sets how many are killed; the few of the usual tests take under three minutes.
"""

import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penalties.app import cli
from penalties.app.runs import Run
from penalties.app.train import start as start_module
from tests.app.stand_ins import TERMS, Backend, write_config

from .commands import result, started, trained

STEPS = 12
KILLS = int(os.environ.get("PENALTIES_KILLS", "6"))
TERM = '[[term]]\nfn = "tests.slow.toy:drift"\nweight = 0.1\n'


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    # The loss falls, so that the first evaluation stays the best, and two that are not end the run early.
    best = {"best_by": "base_loss", "best_is": "highest", "patience": 2, "keep": 1}
    options = {"steps": STEPS + 4, "checkpoint_every": 3, "eval_every": 4, **best}
    return write_config(folder, TERMS + TERM, "[model]\nrank = 2\n", **options)


class Copies:
    """A run of the toy that nothing happened to, and a copy of its folder before each of its writes."""

    def __init__(self, config: Path, folder: Path) -> None:
        (folder / "copies").mkdir()
        assert trained(folder / "run", config, toy=True, kind="copy", to=str(folder / "copies")) == (0, "")
        last = list(Run(folder / "run").records())[-1]
        assert (last["step"], last["early"]) == (STEPS, True)
        self.result = result(folder / "run")
        self.folders = sorted((folder / "copies").iterdir())


@pytest.fixture(scope="module")
def copies(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    folder = tmp_path_factory.mktemp("copies")
    yield Copies(config, folder)
    shutil.rmtree(folder)


Resume = Callable[[Path], None]


@pytest.fixture
def resume(config: Path, copies: Copies, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Resume:
    """Resume the toy, by the command but in this process, and compare what it comes to."""
    monkeypatch.setattr(start_module, "connect", Backend)

    def call(folder: Path) -> None:
        status = cli.main(["train", "--run", str(folder), "--resume", "--quiet"])
        said = capfd.readouterr()
        if not Run(folder).exists():
            # Killed before there was a run: it says what to do, and that is enough.
            assert status == 2
            assert "holds no run; start one without --resume" in said.err
            status = cli.main(["train", str(config), "--run", str(folder), "--quiet"])
            said = capfd.readouterr()
        assert (status, said.err) == (0, "")
        assert result(folder) == copies.result
        assert (folder / "report.html").is_file()
        # An unfinished report may be that of another process, for an hour.
        left = [path.name for path in folder.rglob(".*") if not path.name.startswith(".report.html.")]
        assert not left, f"left behind: {left}"

    return call


def test_what_a_kill_leaves_before_any_write_is_resumed_to_the_same_end(copies: Copies, resume: Resume) -> None:
    # From the lock to the report; log lines, checkpoints and references between.
    assert len(copies.folders) > 120
    for folder in copies.folders:
        resume(folder)


def test_a_kill_leaves_what_the_copies_have(config: Path, copies: Copies, resume: Resume, tmp_path: Path) -> None:
    draw = random.Random(2026)
    for number in draw.sample(range(2, len(copies.folders)), KILLS):
        folder = tmp_path / str(number)
        assert trained(folder, config, toy=True, kind="kill", at=number) == (-signal.SIGKILL, "")
        resume(folder)


@pytest.mark.timeout(3600)
def test_a_command_killed_at_any_moment_is_resumed_to_the_same_end(config: Path, tmp_path: Path) -> None:
    """The real model; every other one is killed twice."""
    assert trained(tmp_path / "unbroken", config, toy=False) == (0, "")
    draw = random.Random(2027)
    for number in range(KILLS // 2):
        folder = tmp_path / f"run-{number}"
        resuming: list[str] = []
        for _ in range(1 + number % 2):
            _kill(started(folder, *(resuming or [config]), toy=False), folder, draw)
            resuming = ["--resume"]
        assert trained(folder, "--resume", toy=False) == (0, "")
        assert result(folder) == result(tmp_path / "unbroken"), f"kill {number}: another end"


def _kill(process: Any, folder: Path, draw: random.Random) -> None:
    """Kill a command at some moment after some line of its log, or of the log that it resumes."""
    log = folder / "metrics.jsonl"
    lines = (log.read_bytes().count(b"\n") if log.is_file() else 0) + draw.randrange(STEPS // 2)
    while process.poll() is None and (not log.is_file() or log.read_bytes().count(b"\n") < lines):
        time.sleep(0.002)
    time.sleep(draw.uniform(0, 0.1))
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "the disk is full; free some space, then resume"),
        (errno.EROFS, "read-only file system; make the folder writable"),
        (errno.EIO, "input/output error"),
    ],
)
def test_a_disk_that_fails_is_a_sentence_and_the_run_is_resumed(
    config: Path, copies: Copies, resume: Resume, tmp_path: Path, number: int, says: str
) -> None:
    draw = random.Random(number)
    for at in draw.sample(range(4, len(copies.folders) - 4), max(1, KILLS // 4)):
        folder = tmp_path / str(at)
        status, error = trained(folder, config, toy=True, kind="error", at=at, number=number)
        assert status == 1
        assert says in error
        assert len(error.splitlines()) <= 2
        resume(folder)


def test_a_limit_of_the_size_of_files_is_a_sentence_too(config: Path, resume: Resume, tmp_path: Path) -> None:
    """What the system itself refuses to write, in libraries too that do not write by Python."""
    status, error = trained(tmp_path / "run", config, toy=True, largest=100_000)
    assert status == 1
    assert "000003 could not be written" in error
    assert "File too large" in error
    resume(tmp_path / "run")


def test_a_folder_that_vanishes_is_a_sentence_and_nothing_of_it_is_lost(
    config: Path, copies: Copies, resume: Resume, tmp_path: Path
) -> None:
    at = len(copies.folders) // 2
    folder, gone = tmp_path / "run", tmp_path / "gone"
    status, error = trained(folder, config, toy=True, kind="vanish", at=at, to=str(gone))
    assert status == 1
    assert error.startswith("error: ")
    assert "run" in error.splitlines()[0]
    assert not folder.exists()
    resume(gone)


def test_a_clock_that_jumps_changes_nothing(config: Path, copies: Copies, tmp_path: Path) -> None:
    assert trained(tmp_path / "run", config, toy=True, kind="clock") == (0, "")
    assert result(tmp_path / "run") == copies.result
