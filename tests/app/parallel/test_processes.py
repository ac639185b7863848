"""Runs in processes: equal to those in sequence, whatever dies meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penalties.app.config import load
from penalties.app.parallel import processes
from penalties.app.parallel.processes import Processes, devices_for
from tests.slow.commands import result

from ..stand_ins import TERMS, write_config

_ROOT = Path(__file__).parents[3]
_TOY = '[[term]]\nfn = "tests.slow.toy:drift"\nweight = 0.1\n'
_DYING = '[[term]]\nfn = "tests.app.terms:dying"\nname = "dying"\nweight = 0.0\n'


_SWEEP = ("--sweep", "kl.weight=0.1,1,2", "--seeds", 1)


@pytest.fixture(scope="module")
def toy() -> Iterator[None]:
    """Processes train the toy."""
    paths = [str(_ROOT / "tests" / "slow" / "startup"), str(_ROOT / "src"), str(_ROOT)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("PENALTIES_TOY", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    return write_config(folder, TERMS + _TOY, steps=300, checkpoint_every=50, eval_every=100)


@pytest.fixture(scope="module")
def sequence(toy: None, path: Path) -> Path:
    """An ablation in one process."""
    folder = path.parent / "sequence"
    assert ablated(path, *_SWEEP, "--run", folder, "--quiet")[0] == 0
    return folder


def started(*arguments: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "penalties", "ablate", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ablated(*arguments: Any) -> tuple[int, str, str]:
    process = started(*arguments)
    out, error = process.communicate(timeout=240)
    assert "Traceback" not in error, error
    return process.returncode, out, error


def results(folder: Path) -> dict[str, Any]:
    """By run, the weights and what was measured: a run that was interrupted has a checkpoint more."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            weights, records = result(path)
            found[path.name] = weights, [record for record in records if record["kind"] != "'event'"]
    return found


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def alive(folder: Path) -> list[int]:
    """The processes that have a file of the folder open, or were started there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            told = (entry / "cmdline").read_bytes()
            if b"penalties.app" in told and str(folder) in os.readlink(entry / "fd" / "2"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
class TestAblation:
    def test_results_are_those_in_sequence_to_the_bit(self, path: Path, tmp_path: Path, sequence: Path) -> None:
        folder = tmp_path / "side"
        status, out, error = ablated(path, *_SWEEP, "--run", folder, "--jobs", 2)
        assert (status, error) == (0, "")
        assert "2 of 4: kl.weight=0.1, seed 0 started" in out
        assert results(folder) == results(sequence)
        one, other = (
            [{**run, "folder": None} for run in json.loads((one / "ablation.json").read_text())["runs"]]
            for one in (sequence, folder)
        )
        assert one == other
        assert not alive(folder)

    def test_one_that_is_killed_is_finished_by_the_next(self, path: Path, tmp_path: Path, sequence: Path) -> None:
        folder = tmp_path / "side"
        process = started(path, *_SWEEP, "--run", folder, "--jobs", 2, "--quiet")
        until(lambda: sum(any(one.glob("checkpoints/0*")) for one in folder.glob("*-seed-0")) > 1)
        process.kill()
        process.communicate()
        status, _, error = ablated(path, *_SWEEP, "--run", folder, "--jobs", 2, "--quiet", "--resume")
        assert (status, error) == (0, "")
        assert results(folder) == results(sequence)

    def test_workers_end_with_what_started_them(self, path: Path, tmp_path: Path) -> None:
        folder = tmp_path / "side"
        more = [*_SWEEP, "--set", "train.steps=500000", "--jobs", 2, "--quiet"]
        process = started(path, "--run", folder, *more)
        until(lambda: len(alive(folder)) == 2 and any(folder.glob("*/checkpoints/0*")))
        process.kill()
        process.communicate()
        until(lambda: not alive(folder))

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_ctrl_c_saves_every_run(self, path: Path, tmp_path: Path, sequence: Path, number: int) -> None:
        folder = tmp_path / "side"
        process = started(path, *_SWEEP, "--run", folder, "--jobs", 2, "--quiet")
        until(lambda: sum(any(one.glob("checkpoints/0*")) for one in folder.glob("*-seed-0")) > 1)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 1
        again = f"penalties ablate {path} --sweep kl.weight=0.1,1,2 --seeds 1 --jobs 2 --run {folder} --resume"
        assert error.splitlines()[-1] == again
        assert not alive(folder)
        assert ablated(*again.split()[2:], "--quiet")[0] == 0
        assert results(folder) == results(sequence)

    def test_a_process_that_dies_is_named_and_the_others_go_on(self, tmp_path: Path) -> None:
        path = write_config(tmp_path, terms=_DYING + _TOY, steps=4)
        folder = tmp_path / "side"
        sweep = ["--sweep", "dying.enabled=false", "--seeds", 2]
        status, out, error = ablated(path, *sweep, "--run", folder, "--jobs", 2)
        assert (status, error) == (1, "error: 2 of 4 runs failed\n")
        assert out.count("failed: its process ended with exit code 3; ") == 2
        found = json.loads((folder / "ablation.json").read_text())["runs"]
        assert [run["error"] is None for run in found] == [False, True, False, True]
        assert "this is the end" in "".join(one.read_text() for one in folder.glob("worker-*.log"))


@pytest.mark.slow
def test_the_built_in_model_learns_the_same_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where PyTorch may use several threads."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(_ROOT / "src"), str(_ROOT)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    more = ["--set", "train.steps=4", "--seeds", 1, "--quiet"]
    assert ablated(*more, "--run", tmp_path / "sequence")[0] == 0
    assert ablated(*more, "--run", tmp_path / "side", "--jobs", 3)[0] == 0
    assert results(tmp_path / "side") == results(tmp_path / "sequence")


class TestDevices:
    @pytest.fixture
    def given(self, tmp_path: Path) -> Any:
        def made(more: str = "") -> Any:
            return [load(write_config(tmp_path, more=more))]

        return made

    def two(self, monkeypatch: pytest.MonkeyPatch, count: int = 2) -> None:
        monkeypatch.setattr(processes, "_DRIVERS", ("/dev/null",))
        monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)

    def test_several_gpus_are_shared_out(self, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.two(monkeypatch)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert devices_for(given()) == ["0", "1"]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
        assert devices_for(given()) == ["3", "5"]

    @pytest.mark.skipif(sys.platform != "linux", reason="looks at Linux's devices")
    def test_without_a_driver_pytorch_is_not_asked(self, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.two(monkeypatch)
        monkeypatch.setattr(processes, "_DRIVERS", ("/dev/nothing",))
        assert devices_for(given()) == []

    @pytest.mark.parametrize("count", [0, 1])
    def test_one_is_left_to_all(self, given: Any, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.two(monkeypatch, count)
        assert devices_for(given()) == []

    @pytest.mark.parametrize("device", ["cpu", "cuda:1"])
    def test_a_run_that_chooses_its_own_keeps_it(
        self, given: Any, monkeypatch: pytest.MonkeyPatch, device: str
    ) -> None:
        self.two(monkeypatch)
        assert devices_for(given(f'[model]\ndevice = "{device}"\n')) == []


def test_nothing_starts_before_there_is_a_run(tmp_path: Path) -> None:
    workers = Processes(2, tmp_path)
    assert workers.free == 2
    workers.interrupt()
    workers.close()
    assert not list(tmp_path.iterdir())
