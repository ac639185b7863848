"""Terms on a Ray cluster that fail, are late, or are lost: nothing is lost but what was lost."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.execution.pools import ray as ray_module
from penalties.execution.pools.ray import RayPool, TermEvaluator

from .terms import PATIENCE, SlowToLoad, Unloadable, away, eventually, gone, probe, processes, squares, task

ray = pytest.importorskip("ray")


@pytest.mark.slow
class TestFailures:
    def test_a_term_that_raises_is_named_with_its_cause(self, executor: pn.Executor) -> None:
        def broken(x: Any) -> Any:
            raise ValueError("no luck")

        pipeline = pn.Pipeline([pn.Term(broken, runs="ray"), pn.Term(squares, runs="ray"), "l1"])
        with pytest.raises(pn.TermError, match=r"^broken: raised ValueError: no luck$") as caught:
            executor.run(pipeline, np.array([3.0, -1.0]))
        assert caught.value.term == "broken"
        assert isinstance(caught.value.__cause__, ValueError)
        assert float(caught.value.output.total) == 14.0
        probe(executor)

    def test_a_term_that_exits_does_not_end_its_worker(self, executor: pn.Executor) -> None:
        before = processes(executor)
        with pytest.raises(pn.TermError, match="raised SystemExit: 3"):
            executor.run(away(lambda x: sys.exit(3), name="leaving"), np.ones(1))
        assert processes(executor) == before

    def test_the_child_of_a_term_that_forks_is_no_second_worker(self, executor: pn.Executor) -> None:
        def forking(x: Any) -> Any:
            child = os.fork()
            return x.sum(), {"child": child}

        out = executor.run(away(forking), np.ones(3))
        assert float(out.total) == 3.0
        eventually(lambda: gone(int(out.metrics()["forking/child"])))
        probe(executor)

    @pytest.mark.parametrize("how", ["sleeps", "spins"])
    def test_a_late_term_is_killed_and_its_neighbour_lives(self, executor: pn.Executor, how: str) -> None:
        def late(x: Any) -> Any:
            while True:
                if how == "sleeps":
                    time.sleep(60.0)

        pipeline = pn.Pipeline([pn.Term(late, runs="ray", timeout=0.5), pn.Term(squares, runs="ray")])
        probe(executor)
        began = time.monotonic()
        with pytest.raises(pn.TermTimeoutError, match=r"took more than 0\.5 s.*killed") as caught:
            executor.run(pipeline, np.array([3.0]))
        assert time.monotonic() - began < PATIENCE
        assert not caught.value.abandoned
        assert float(caught.value.output.total) == 9.0
        probe(executor)

    def test_a_worker_that_was_stopped_while_it_rested_is_replaced(
        self, executor: pn.Executor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for process in processes(executor):
            os.kill(process, signal.SIGSTOP)
        monkeypatch.setattr("penalties.execution.pools.ray._TAKING", 2.0)
        probe(executor)

    def test_the_clock_starts_when_the_term_is_loaded(self, executor: pn.Executor) -> None:
        assert float(executor.run(away(SlowToLoad(), name="slow", timeout=0.5), np.ones(3)).total) == 3.0

    def test_a_term_that_does_not_load_in_time_is_killed(
        self, executor: pn.Executor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probe(executor)
        monkeypatch.setattr(ray_module, "LOADING", 0.5)
        with pytest.raises(pn.TermTimeoutError, match=r"was not loaded within 0\.5 s"):
            executor.run(away(SlowToLoad(), name="slow"), np.ones(3))
        monkeypatch.undo()
        probe(executor)

    def test_a_term_that_cannot_be_loaded_says_why(self, executor: pn.Executor) -> None:
        with pytest.raises(pn.TermError, match=r"could not be loaded in a worker: RuntimeError: not here") as caught:
            executor.run(away(Unloadable(), name="unloadable"), np.ones(3))
        assert isinstance(caught.value.__cause__, RuntimeError)

    @pytest.mark.parametrize("how", ["exits", "is killed"])
    def test_a_lost_worker_is_reported_with_a_hint(self, executor: pn.Executor, how: str) -> None:
        def lost(x: Any) -> Any:
            if how == "exits":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)

        pipeline = pn.Pipeline([pn.Term(lost, runs="ray"), pn.Term(squares, runs="ray")])
        with pytest.raises(pn.WorkerLostError, match=r"^lost: its worker \(process \d+ on .*\) was lost: ") as caught:
            executor.run(pipeline, np.array([3.0]))
        assert caught.value.message.endswith("idempotent=True lets it run again")
        assert isinstance(caught.value.__cause__, ray.exceptions.RayActorError)
        assert float(caught.value.output.total) == 9.0
        probe(executor)

    def test_an_idempotent_term_is_run_again(self, executor: pn.Executor, tmp_path: Path) -> None:
        def lost_once(x: Any) -> Any:
            with (tmp_path / "runs").open("a") as file:
                file.write("run\n")
            if len((tmp_path / "runs").read_text().splitlines()) == 1:
                os._exit(3)
            return x.sum()

        assert float(executor.run(away(lost_once, idempotent=True), np.ones(3)).total) == 3.0
        assert (tmp_path / "runs").read_text() == "run\nrun\n"

    def test_an_idempotent_term_is_run_again_but_once(self, executor: pn.Executor) -> None:
        with pytest.raises(pn.WorkerLostError, match=r"was lost twice: [^;]*$"):
            executor.run(away(lambda x: os._exit(3), name="lost", idempotent=True), np.ones(3))
        probe(executor)

    def test_workers_that_died_idle_cost_no_term_anything(self, executor: pn.Executor) -> None:
        for process in processes(executor):
            os.kill(process, signal.SIGKILL)
        pipeline = pn.Pipeline([pn.Term(squares, name=f"s{i}", runs="ray") for i in range(4)])
        assert float(executor.run(pipeline, np.array([3.0])).total) == 36.0

    def test_a_tensor_that_requires_a_gradient_cannot_be_captured(self, executor: pn.Executor) -> None:
        weight = torch.ones(3, requires_grad=True)
        with pytest.raises(pn.TermError, match=r"captured: its function holds a tensor"):
            executor.run(away(lambda x: (weight * x).sum(), name="captured"), torch.ones(3))

    def test_inputs_that_cannot_be_sent_are_an_error(self, executor: pn.Executor) -> None:
        with pytest.raises(pn.TermError, match=r"squares: its inputs cannot be sent to another process: TypeError"):
            executor.run(away(squares), {"x": threading.Lock()})

    def test_cancelling_stops_what_runs_and_forgets_what_waits(self, executor: pn.Executor, tmp_path: Path) -> None:
        def slow(x: Any) -> Any:
            (tmp_path / str(os.getpid())).touch()
            time.sleep(60.0)

        async def main() -> None:
            terms = [pn.Term(slow, name=f"slow{i}", runs="ray", idempotent=True) for i in range(4)]
            run = asyncio.ensure_future(executor.run_async(pn.Pipeline(terms), np.ones(1)))
            while len(list(tmp_path.iterdir())) < 2:
                await asyncio.sleep(0.02)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

        processes(executor)
        asyncio.run(asyncio.wait_for(main(), PATIENCE))
        began = [int(path.name) for path in tmp_path.iterdir()]
        eventually(lambda: all(gone(process) for process in began))
        probe(executor)
        assert len(list(tmp_path.iterdir())) == 2

    def test_what_failed_or_was_done_is_cancelled_without_harm(self, executor: pn.Executor) -> None:
        before = processes(executor)
        pool = executor.pool(pn.Term(squares, runs="ray"))
        running = pool.start(task(squares))
        assert float(running.result().value) == 3.0
        running.cancel()
        assert processes(executor) == before

    def test_a_failure_of_ray_itself_is_an_error(self, monkeypatch: pytest.MonkeyPatch, executor: pn.Executor) -> None:
        class Odd(TermEvaluator):
            def load(self, parts: Any, body: Any) -> Any:
                raise ImportError("another release")

        probe(executor)
        monkeypatch.setattr(ray_module, "TermEvaluator", Odd)
        with pn.Executor(max_workers=1) as other, pytest.raises(pn.TermError, match="failed on the cluster: .*another"):
            other.run(away(squares), np.ones(1))

    def test_a_cluster_that_gives_no_workers_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch, executor: pn.Executor
    ) -> None:
        class Stillborn(TermEvaluator):
            def __init__(self) -> None:
                raise ImportError("No module named 'penalties'")

        probe(executor)
        monkeypatch.setattr(ray_module, "TermEvaluator", Stillborn)
        message = r"^squares: could not start a worker on the cluster: .*No module named 'penalties'"
        with pn.Executor(max_workers=1) as other, pytest.raises(pn.WorkerLostError, match=message):
            other.run(away(squares), np.ones(1))

    def test_a_worker_that_dies_as_it_starts_is_replaced(
        self, monkeypatch: pytest.MonkeyPatch, executor: pn.Executor, tmp_path: Path
    ) -> None:
        class Unlucky(TermEvaluator):
            def __init__(self) -> None:
                if not (tmp_path / "started").exists():
                    (tmp_path / "started").touch()
                    os._exit(1)
                super().__init__()

        probe(executor)
        monkeypatch.setattr(ray_module, "TermEvaluator", Unlucky)
        with pn.Executor(max_workers=1) as other:
            probe(other)

    def test_what_is_not_data_cannot_be_sent(self, executor: pn.Executor) -> None:
        class Local:
            pass

        def odd(x: Any) -> pn.Evaluation:
            return pn.Evaluation(x.sum(), state=Local())

        with pytest.raises(pn.TermError, match="odd: its result cannot be sent to the caller: .* of class Local"):
            executor.run(away(odd), np.ones(1))

    def test_executors_share_a_cluster_that_the_last_one_ends(self, executor: pn.Executor) -> None:
        probe(executor)
        with pn.Executor(max_workers=2) as other:
            probe(other)
        probe(executor)

    def test_closing_with_results_pending_hangs_nobody(self, executor: pn.Executor, tmp_path: Path) -> None:
        def slow(x: Any) -> Any:
            (tmp_path / str(os.getpid())).touch()
            time.sleep(60.0)

        probe(executor)
        pool = RayPool(1)
        running, waiting = pool.start(task(slow)), pool.start(task(slow))
        eventually(lambda: list(tmp_path.iterdir()))
        began = time.monotonic()
        pool.close()
        for one in (running, waiting):
            with pytest.raises(pn.TermError, match="slow: the executor was closed before it finished"):
                one.result()
        assert time.monotonic() - began < PATIENCE
        eventually(lambda: gone(int(next(tmp_path.iterdir()).name)))
        with pytest.raises(pn.TermError, match="the executor is closed"):
            pool.start(task(squares))
        probe(executor)

    def test_closing_while_workers_start_hangs_nobody(self, executor: pn.Executor) -> None:
        probe(executor)
        pool = RayPool(2)
        running = pool.start(task(squares))
        pool.close()
        with pytest.raises(pn.TermError, match="the executor was closed"):
            running.result()
        probe(executor)
