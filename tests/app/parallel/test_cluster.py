"""Runs on a Ray cluster: equal to those in sequence, and finished on another node where theirs is lost."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penalties.app import cli
from penalties.app.config import load
from penalties.app.parallel import Task, side_by_side
from penalties.app.parallel.board import Board
from penalties.app.parallel.cluster import Cluster, train_on_node
from penalties.app.runs import Run
from penalties.app.train import start

from ..stand_ins import TERMS, records, write_config
from .test_processes import results, until

_ROOT = Path(__file__).parents[3]
_TOY = '[[term]]\nfn = "tests.slow.toy:drift"\nweight = 0.1\n'


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a cluster that starts now train the toy."""
    paths = [str(_ROOT / "src"), str(_ROOT)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("PENALTIES_TOY", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # The toy's module, which a config names, replaces it in this process too.
    monkeypatch.setattr(start, "connect", start.connect)


@pytest.fixture
def nodes(toy: None) -> Iterator[Any]:
    """A machine that can train, and a node that only holds the cluster together."""
    import ray
    from ray.cluster_utils import Cluster as Machines

    memory = {"object_store_memory": 100_000_000, "include_dashboard": False}
    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 0, **memory})
    first = machines.add_node(num_cpus=1, object_store_memory=100_000_000)
    ray.init(address=machines.address, log_to_driver=False, logging_level="ERROR")
    machines.wait_for_nodes()
    yield SimpleNamespace(machines=machines, first=first)
    ray.shutdown()
    machines.shutdown()


@pytest.mark.slow
def test_results_are_those_in_sequence_to_the_bit(toy: None, tmp_path: Path) -> None:
    path = write_config(tmp_path, TERMS + _TOY, steps=100, checkpoint_every=20, eval_every=50)
    for name, more in (("sequence", []), ("cluster", ["--ray", "--jobs", "2"])):
        sweep = ["--sweep", "kl.weight=0.1,1,2", "--seeds", "1"]
        command = [sys.executable, "-m", "penalties", "ablate", path, *sweep, *more, "--run", tmp_path / name]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert results(tmp_path / "cluster") == results(tmp_path / "sequence")
    found = json.loads((tmp_path / "cluster" / "ablation.json").read_text())["runs"]
    assert [run["error"] for run in found] == [None] * 4


@pytest.mark.slow
def test_a_run_whose_node_is_lost_goes_on_elsewhere_from_its_checkpoint(nodes: Any, tmp_path: Path) -> None:
    path = write_config(tmp_path, TERMS + _TOY, steps=4000, checkpoint_every=100, eval_every=4000)
    tasks = [Task("all", tmp_path / "run", load(path))]
    found: list[str | None] = []

    class Losing(Board):
        lost = False

        def look(self) -> None:
            saved = Run(tmp_path / "run").saved()
            if saved and not self.lost:
                self.lost = True
                nodes.machines.remove_node(nodes.first, allow_graceful=False)
                nodes.machines.add_node(num_cpus=1, object_store_memory=100_000_000)

    board = Losing(1)
    side_by_side(tasks, Cluster("auto", 1), board, lambda _, error: found.append(error))
    assert board.lost
    assert found == [None]
    (again,) = (record["message"] for record in records(Run(tmp_path / "run"), "event") if record["event"] == "resumed")
    assert again.startswith("from the checkpoint after ")
    steps = [record["step"] for record in records(Run(tmp_path / "run"), "step")]
    assert steps == [*range(1, 4001)]


@pytest.mark.slow
def test_ctrl_c_saves_what_runs_and_starts_nothing_more(nodes: Any, tmp_path: Path) -> None:
    path = write_config(tmp_path, TERMS + _TOY, steps=100_000, checkpoint_every=100_000, eval_every=100_000)
    config = load(path)
    for name in ("one", "two"):
        Run.create(tmp_path / name, config).close()
    workers = Cluster("auto", 2)
    assert workers.free == 2
    workers.submit(tmp_path / "one")
    workers.submit(tmp_path / "two")
    until(lambda: any(Run(tmp_path / name).begun() for name in ("one", "two")))
    workers.interrupt()
    ended: dict[Path, Any] = {}
    end = time.monotonic() + 60
    while len(ended) < 2 and time.monotonic() < end:
        ended |= dict(workers.wait(1.0))
    workers.close()
    assert all(failure.interrupted for failure in ended.values())
    assert sum(len(Run(tmp_path / name).saved()) for name in ("one", "two")) == 1


def test_a_folder_that_the_node_does_not_have_is_an_error(tmp_path: Path) -> None:
    answer = train_on_node(str(tmp_path / "gone"), 1)
    assert answer["status"] == 2
    assert "choose a folder that all nodes of the cluster share, with --run" in answer["message"]


class TestOptions:
    @pytest.fixture(autouse=True)
    def here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        write_config(tmp_path, steps=1)

    def test_an_address_where_nobody_is_is_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ablate", "toy.toml", "--ray", "127.0.0.1:1", "--quiet"]) == 2
        assert "no server answers at 127.0.0.1:1" in capsys.readouterr().err

    def test_a_config_is_no_address(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ablate", "--ray", "toy.toml"]) == 2
        assert 'found "toy.toml" as its address; put --ray after CONFIG' in capsys.readouterr().err

    def test_without_ray_one_line_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        assert cli.main(["ablate", "toy.toml", "--ray", "--quiet"]) == 2
        assert capsys.readouterr().err == 'error: --ray needs ray: pip install "penalties[ray]"\n'
