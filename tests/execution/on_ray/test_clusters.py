"""Clusters: the user's own, none, and one of two nodes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.execution.pools import ray as ray_module
from penalties.execution.pools import ray_connection

from .terms import PATIENCE, away, connect, eventually, gone, probe, processes, squares

ray = pytest.importorskip("ray")


@pytest.mark.slow
@pytest.mark.usefixtures("theirs")
class TestTheirCluster:
    def test_it_is_left_alone_and_our_actors_go(self) -> None:
        @ray.remote(num_cpus=0)
        class Theirs:
            def hello(self) -> str:
                return "hello"

        one = Theirs.remote()
        before = set(threading.enumerate())
        with pn.Executor() as executor:
            probe(executor)
            workers = processes(executor)
        assert ray.is_initialized()
        assert ray.get(one.hello.remote()) == "hello"
        eventually(lambda: all(gone(process) for process in workers))
        eventually(lambda: ray.available_resources().get("CPU") == 2.0)
        ours = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("penalties")]
        assert not ours

    def test_terms_take_turns_where_there_is_less_room_than_workers(self) -> None:
        @ray.remote(num_cpus=1)
        class Theirs:
            def hello(self) -> str:
                return "hello"

        one = Theirs.remote()
        ray.get(one.hello.remote())
        with pn.Executor(max_workers=8) as executor:
            terms = [pn.Term(squares, name=f"s{i}", runs="ray") for i in range(4)]
            assert float(executor.run(pn.Pipeline(terms), np.array([3.0])).total) == 36.0
        ray.kill(one)

    def test_a_cluster_without_room_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @ray.remote(num_cpus=2)
        class Theirs:
            def hello(self) -> str:
                return "hello"

        eventually(lambda: ray.available_resources().get("CPU") == 2.0)
        one = Theirs.remote()
        ray.get(one.hello.remote())
        monkeypatch.setattr(ray_module, "LOADING", 1.0)
        message = r"^squares: could not start a worker on the cluster: "
        with pn.Executor() as executor, pytest.raises(pn.WorkerLostError, match=message):
            executor.run(away(squares), np.ones(1))
        ray.kill(one)

    def test_a_connection_that_the_user_makes_anew_is_used_and_one_that_they_end_replaced(self) -> None:
        with pn.Executor(max_workers=1) as executor:
            probe(executor)
            ray.shutdown()
            connect()
            probe(executor)
            ray.shutdown()
            probe(executor)
            assert ray.is_initialized()
        assert not ray.is_initialized()


class TestWithoutACluster:
    def test_a_missing_ray_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        message = r'a term with runs="ray" needs ray: pip install "penalties\[ray\]"'
        with pn.Executor() as executor, pytest.raises(pn.MissingLibraryError, match=message):
            executor.run(away(squares), np.ones(1))

    def test_a_cluster_that_cannot_be_reached_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}

        def init(**options: Any) -> None:
            asked.update(options)
            raise ConnectionError("nobody there")

        monkeypatch.setattr(ray, "init", init)
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
        message = "^squares: could not start a worker on the cluster: nobody there"
        with pn.Executor() as executor, pytest.raises(pn.WorkerLostError, match=message):
            executor.run(away(squares), np.ones(1))
        assert asked["address"] == "10.0.0.1:6379"
        assert "num_cpus" not in asked

    @pytest.mark.slow
    def test_nothing_is_printed_and_nothing_stays(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        found = subprocess.run(
            [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=4 * PATIENCE
        )
        assert found.returncode == 0, found.stderr
        assert found.stdout == "9.0\n"
        assert found.stderr == ""

        def ours() -> bool:
            commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
            return any(str(tmp_path).encode() in command for command in commands)

        eventually(lambda: not ours())

    @pytest.mark.slow
    @pytest.mark.parametrize("whose", ["ours", "theirs"])
    def test_one_that_was_stopped_holds_up_neither_terms_nor_closing(
        self, monkeypatch: pytest.MonkeyPatch, whose: str
    ) -> None:
        if whose == "theirs":
            connect()
        executor = pn.Executor(max_workers=1)
        (process,) = processes(executor, 1)
        (server,) = _children("gcs_server")
        monkeypatch.setattr(ray_module, "LOADING", 3.0)
        monkeypatch.setattr(ray_module, "_KILLING", 0.5)
        monkeypatch.setattr(ray_connection, "_ENDING", 2.0)
        closing = threading.Thread(target=executor.close, daemon=True)
        os.kill(server, signal.SIGSTOP)
        try:
            # Another worker is needed, which only the server can provide.
            os.kill(process, signal.SIGKILL)
            eventually(lambda: gone(process))
            with ThreadPoolExecutor(1) as threads:
                running = threads.submit(executor.run, away(squares), np.ones(1))
                with pytest.raises(pn.WorkerLostError, match=r"^squares: could not start a worker on the cluster"):
                    running.result(PATIENCE)
            closing.start()
            closing.join(PATIENCE)
            assert not closing.is_alive()
        finally:
            os.kill(server, signal.SIGCONT)
            closing.join(PATIENCE)
            # A call that the end of the connection overtakes would never return.
            eventually(lambda: all(thread.name != "penalties-ray-call" for thread in threading.enumerate()))
            if whose == "theirs":
                ray.shutdown()
            eventually(lambda: not ray.is_initialized())


def _children(name: str) -> list[int]:
    """The processes of this name that were started here."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and name in (path / "cmdline").read_text():
                found.append(int(path.name))
    return found


SCRIPT = """
import numpy as np
import penalties as pn


def chatty(x):
    print("I am in a worker")
    return (x**2).sum()


if __name__ == "__main__":
    # Forgotten, it is closed all the same.
    executor = pn.Executor(max_workers=1)
    print(float(executor.run(pn.Pipeline([pn.Term(chatty, runs="ray")]), np.array([3.0])).total))
"""


@pytest.mark.slow
class TestTwoNodes:
    @staticmethod
    def where(x: Any) -> Any:
        """A term that says which node it ran on."""
        import ray as here

        time.sleep(1.0)
        return x.sum(), {"node": float(int(here.get_runtime_context().get_node_id()[:12], 16))}

    def test_terms_use_both_nodes(self, nodes: Any) -> None:
        def number(node: Any) -> float:
            return float(int(node.node_id[:12], 16))

        terms = [pn.Term(self.where, name=f"t{i}", runs="ray", differentiable=False) for i in range(4)]
        with pn.Executor(max_workers=1) as executor:

            def used() -> set[float]:
                return {term.metrics["node"] for term in executor.run(pn.Pipeline(terms), np.ones(1)).terms.values()}

            eventually(lambda: used() == {number(nodes.first), number(nodes.second)})

    def test_losing_a_node_mid_step(self, nodes: Any, tmp_path: Path) -> None:
        go, names = tmp_path / "go", ("again0", "again1", "once0", "once1")

        def slow(name: str) -> Any:
            def term(x: Any) -> Any:
                import ray as here

                node = here.get_runtime_context().get_node_id()
                (tmp_path / f"{name}.new").write_text(f"{node} {os.getpid()}")
                (tmp_path / f"{name}.new").rename(tmp_path / name)
                while not go.exists():
                    time.sleep(0.05)
                return x.sum()

            return pn.Term(term, name=name, runs="ray", timeout=4 * PATIENCE, idempotent=name.startswith("again"))

        def where(name: str) -> tuple[str, int]:
            node, process = (tmp_path / name).read_text().split()
            return node, int(process)

        pipeline = pn.Pipeline([slow(name) for name in names])
        with pn.Executor(max_workers=1) as executor, ThreadPoolExecutor(1) as thread:
            while True:
                # Until each node has one of either kind.
                run = thread.submit(executor.run, pipeline, np.ones(3))
                eventually(lambda: all((tmp_path / name).exists() for name in names))
                there = [name for name in names if where(name)[0] == nodes.second.node_id]
                if [name[:-1] for name in there] == ["again", "once"]:
                    break
                go.touch()
                run.result()
                for path in tmp_path.iterdir():
                    path.unlink()
            lost = [where(name)[1] for name in there]
            nodes.machines.remove_node(nodes.second, allow_graceful=False)
            eventually(lambda: all(gone(process) for process in lost))
            go.touch()
            message = (
                rf"^{there[1]}: its worker \(process {lost[1]} on .*\) was lost: .*; idempotent=True lets it run again$"
            )
            with pytest.raises(pn.WorkerLostError, match=message) as caught:
                run.result(4 * PATIENCE)
            assert where(there[0])[0] == nodes.first.node_id
            values = {name: term.value for name, term in caught.value.output.terms.items() if term.error is None}
            assert {name: float(value) for name, value in values.items()} == {
                name: 3.0 for name in names if name != there[1]
            }
            probe(executor)
