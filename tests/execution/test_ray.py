"""Terms on a Ray cluster: the same numbers as here, and nothing lost but what was lost."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor

import penalties as pn
from penalties.execution.pools import ray as ray_module
from penalties.execution.pools.ray import RayPool, TermEvaluator
from penalties.execution.task import Task
from penalties.pipeline.catalogue import BUILT_IN

ray = pytest.importorskip("ray")

PAIRED = ("kl_divergence", "js_divergence", "consistency", "kl_estimate")
NAMES = [name for name in BUILT_IN if "gradient_penalty" not in name]
PATIENCE = 60.0
"""Seconds in which what happens by and by has happened, on a machine that has other things to do."""


def connect(**options: Any) -> None:
    """What a user does who has a cluster: here a small one of their own."""
    ray.init(
        **{
            "address": "local",
            "num_cpus": 2,
            "object_store_memory": 100_000_000,
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            **options,
        }
    )


@pytest.fixture(scope="class")
def executor() -> Iterator[pn.Executor]:
    """One that starts a cluster on this machine."""
    assert not ray.is_initialized()
    with pn.Executor(max_workers=2, timeout=120.0) as executor:
        yield executor
    assert not ray.is_initialized()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("penalties-ray")]


@pytest.fixture(scope="class")
def theirs() -> Iterator[None]:
    """A cluster that the user is connected to."""
    connect()
    yield
    ray.shutdown()


def logprobs(seed: int, *shape: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=shape)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def built_in(name: str, place: Any) -> pn.Term:
    return pn.Term(name, 0.3, inputs=("x", "y") if name in PAIRED else "x", runs=place)


def away(fn: Any, **arguments: Any) -> pn.Pipeline:
    return pn.Pipeline([pn.Term(fn, runs="ray", **arguments)])


def squares(x: Any) -> Any:
    return (x**2).sum()


def probe(executor: pn.Executor) -> None:
    """The place still works."""
    assert float(executor.run(away(squares), np.array([3.0])).total) == 9.0


def eventually(happened: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def gone(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def task(fn: Any, x: Any = None, **arguments: Any) -> Task:
    """What a place is given, without a run around it."""
    term = pn.Term(fn, runs="ray", **arguments)
    return Task(term, {"x": np.ones(3) if x is None else x}, (), None, None, 60.0, contextlib.nullcontext)


def processes(executor: pn.Executor, count: int = 2) -> list[int]:
    """The processes of the executor's actors, as many as there can be."""
    found: set[int] = set()

    def who(x: Any) -> Any:
        time.sleep(0.2)
        return np.float64(0.0), {"process": os.getpid()}

    def look() -> bool:
        terms = [pn.Term(who, name=f"who{place}", runs="ray", differentiable=False) for place in range(count)]
        found.clear()
        found.update(
            int(term.metrics["process"]) for term in executor.run(pn.Pipeline(terms), np.ones(1)).terms.values()
        )
        return len(found) == count

    eventually(look)
    return sorted(found)


class Noted:
    """A term that notes each time it is loaded."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, x: Any) -> Any:
        return x.sum()

    def __reduce__(self) -> Any:
        return _noted, (self.log,)


def _noted(log: Path) -> Noted:
    with log.open("a") as file:
        file.write("loaded\n")
    return Noted(log)


class SlowToLoad:
    def __call__(self, x: Any) -> Any:
        return x.sum()

    def __reduce__(self) -> Any:
        return _slowly, ()


def _slowly() -> SlowToLoad:
    time.sleep(1.5)
    return SlowToLoad()


class Unloadable(SlowToLoad):
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("not here")


def _elsewhere(process: int) -> None:
    if process != os.getpid():
        raise RuntimeError("not here")


@pytest.mark.slow
class TestOurCluster:
    @pytest.mark.parametrize("name", NAMES)
    def test_torch_terms_train_as_inline(self, executor: pn.Executor, name: str) -> None:
        def run(place: Any, runner: Any) -> tuple[Tensor, Tensor, dict[str, float]]:
            inputs = {"x": torch.tensor(logprobs(0, 5, 7), requires_grad=True), "y": torch.tensor(logprobs(1, 5, 7))}
            out = runner(pn.Pipeline([built_in(name, place)]), inputs)
            (2.0 * out.total).backward()
            grad = inputs["x"].grad
            assert grad is not None
            return out.total.detach(), grad, out.metrics()

        total, gradient, metrics = run("inline", lambda pipeline, inputs: pipeline(**inputs))
        there, found, shown = run("ray", executor.run)
        torch.testing.assert_close(there, total, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(found, gradient, rtol=1e-6, atol=1e-9)
        assert shown == pytest.approx(metrics, rel=1e-6)

    @pytest.mark.parametrize("name", ["l1", "kl_divergence", "entropy"])
    def test_jax_terms_are_differentiated_as_inline(self, executor: pn.Executor, name: str) -> None:
        x, y = (jnp.asarray(logprobs(seed, 5, 7), jnp.float32) for seed in (0, 1))

        def here(x: Any) -> Any:
            return 2.0 * pn.Pipeline([built_in(name, "inline")])(x=x, y=y).total

        def there(x: Any) -> Any:
            return 2.0 * executor.run(pn.Pipeline([built_in(name, "ray")]), {"x": x, "y": y}).total

        expected, gradient = jax.value_and_grad(here)(x)
        value, found = jax.value_and_grad(there)(x)
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        np.testing.assert_allclose(found, gradient, rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("make", [np.array, torch.tensor, jnp.array], ids=["numpy", "torch", "jax"])
    def test_a_numpy_term_brings_its_gradient_and_metrics(self, executor: pn.Executor, make: Any) -> None:
        def own(x: Any) -> pn.Evaluation:
            plain = np.asarray(x.detach() if hasattr(x, "detach") else x)
            return pn.Evaluation(np.float64((plain**2).sum()), gradient={"x": 2 * plain}, metrics={"size": plain.size})

        out = executor.run(away(own, weight=0.5), make([1.0, -2.0]), wrt="input")
        assert out.gradient.tolist() == [1.0, -2.0]
        metrics = out.metrics()
        assert [metrics[key] for key in ("own", "own_weighted", "own/size", "total")] == [5.0, 2.5, 2.0, 2.5]

    @pytest.mark.parametrize("make", [np.array, torch.tensor, jnp.array], ids=["numpy", "torch", "jax"])
    def test_large_arrays_go_through_the_object_store(self, executor: pn.Executor, make: Any) -> None:
        data = np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32)
        x = make(data)

        def own(x: Any) -> Any:
            plain = np.asarray(x.detach() if hasattr(x, "detach") else x)
            return pn.Evaluation(np.float32(3.0), {"x": 2 * plain}, state=plain + 1)

        for _ in range(3):
            out = executor.run(away(own), x, wrt="input")
            np.testing.assert_array_equal(np.asarray(out.gradient), 2 * data)
            state = out.state["own"]
            np.testing.assert_array_equal(state, data + 1)
            # It is the caller's: not a window onto Ray's memory.
            state += 1

    def test_a_term_may_write_to_its_inputs(self, executor: pn.Executor) -> None:
        def centred(x: Any) -> Any:
            x -= x.mean()
            return np.abs(x).sum()

        for size in (4, 100_000):
            x = np.ones(size)
            assert float(executor.run(away(centred), x).total) == 0.0
            assert x[0] == 1.0

    def test_every_place_in_one_pipeline(self, executor: pn.Executor) -> None:
        async def awaited(x: Tensor) -> Tensor:
            await asyncio.sleep(0.01)
            return (x**3).sum()

        places = ("ray", "inline", "thread", "process", "async", "ray")
        fns: list[Any] = [pn.l1, pn.l2, squares, torch.logsumexp, awaited, torch.linalg.norm]
        fns[3] = lambda x: torch.logsumexp(x, 0)
        fns[5] = lambda x: torch.linalg.norm(x)

        def terms(places: Any) -> list[pn.Term]:
            return [
                pn.Term(fn, 0.1 * (i + 1), name=f"term{i}", inputs="x", runs=place)
                for i, (fn, place) in enumerate(zip(fns, places, strict=True))
            ]

        def run(places: Any) -> tuple[Any, Tensor]:
            x = torch.tensor([1.0, -2.0, 0.5], requires_grad=True)
            out = executor.run(pn.Pipeline(terms(places)), {"x": x})
            out.total.backward()
            assert x.grad is not None
            return out, x.grad

        expected, gradient = run(("inline",) * 6)
        out, found = run(places)
        assert [term.name for term in out.terms.values()] == [f"term{i}" for i in range(6)]
        assert out.metrics() == pytest.approx(expected.metrics(), rel=1e-6)
        torch.testing.assert_close(found, gradient, rtol=1e-6, atol=1e-9)

    def test_lambdas_closures_and_coroutines(self, executor: pn.Executor) -> None:
        scale = 3.0

        async def awaited(x: Any) -> Any:
            await asyncio.sleep(0.01)
            return scale * x.sum()

        x = np.array([1.0, 2.0])
        assert float(executor.run(away(lambda x: scale * x.sum(), name="closure"), x).total) == 9.0
        assert float(executor.run(away(awaited), x).total) == 9.0

    def test_state_and_step_arrive(self, executor: pn.Executor) -> None:
        def counted(x: Any, state: Any, step: int) -> pn.Evaluation:
            before = np.zeros(1) if state is None else state
            return pn.Evaluation(x.sum() * step, state=before + 1)

        state = None
        for step in range(3):
            out = executor.run(away(counted), np.ones(2), step=step, state=state)
            state = out.state
            assert float(out.total) == 2.0 * step
        assert state is not None
        assert state["counted"].tolist() == [3.0]

    def test_settings_that_change_numbers_follow(self, executor: pn.Executor) -> None:
        torch.set_default_dtype(torch.float64)
        try:
            out = executor.run(away(lambda x: x.sum() * torch.full((), 0.1), name="wide"), torch.ones(1))
        finally:
            torch.set_default_dtype(torch.float32)
        assert float(out.total) == 0.1
        with jax.enable_x64(True):
            out = executor.run(away(lambda x: x.sum(), name="wide"), jnp.array([0.1], jnp.float64))
            assert out.total.dtype == jnp.float64
        assert float(out.total) == 0.1

    def test_results_come_in_term_order(self, executor: pn.Executor) -> None:
        def late(seconds: float) -> Any:
            def term(x: Any) -> Any:
                time.sleep(seconds)
                return x.sum() * seconds

            return term

        waits = [0.3, 0.0, 0.1, 0.0, 0.2]
        terms = [pn.Term(late(wait), name=f"w{i}", runs="ray") for i, wait in enumerate(waits)]
        out = executor.run(pn.Pipeline(terms), np.ones(1))
        assert [(term.name, float(term.value)) for term in out.terms.values()] == [
            (f"w{i}", w) for i, w in enumerate(waits)
        ]

    def test_a_function_is_sent_once_and_not_once_a_step(self, executor: pn.Executor, tmp_path: Path) -> None:
        log = tmp_path / "loads"
        pipeline = away(Noted(log), name="noted")
        for step in range(10):
            executor.run(pipeline, np.ones(1), weights={"noted": 1.0 / (step + 1)})
        assert 1 <= len(log.read_text().splitlines()) <= 2

    def test_workers_are_limited_to_their_processor(self, executor: pn.Executor) -> None:
        def threads(x: Any) -> Any:
            shown = {key: float(os.environ[key]) for key in ("OMP_NUM_THREADS", "OMP_NUM_THREADS")}
            assert os.environ["JAX_PLATFORMS"] == "cpu"
            return x.sum(), {**shown, "torch": torch.get_num_threads()}

        metrics = executor.run(away(threads), torch.ones(1)).metrics()
        assert [metrics[f"threads/{key}"] for key in ("OMP_NUM_THREADS", "OMP_NUM_THREADS", "torch")] == [1, 1, 1]

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

    def test_the_clock_starts_when_the_term_is_loaded(self, executor: pn.Executor) -> None:
        assert float(executor.run(away(SlowToLoad(), name="slow", timeout=0.5), np.ones(3)).total) == 3.0

    def test_a_term_that_does_not_load_in_time_is_killed(
        self, executor: pn.Executor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probe(executor)
        monkeypatch.setattr(ray_module, "_LOADING", 0.5)
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

    def test_inputs_that_cannot_be_sent_are_refused(self, executor: pn.Executor) -> None:
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

    def test_a_failure_of_ray_itself_is_told(self, monkeypatch: pytest.MonkeyPatch, executor: pn.Executor) -> None:
        class Odd(TermEvaluator):
            def load(self, parts: Any, body: Any) -> Any:
                raise ImportError("another release")

        probe(executor)
        monkeypatch.setattr(ray_module, "TermEvaluator", Odd)
        with pn.Executor(max_workers=1) as other, pytest.raises(pn.TermError, match="failed on the cluster: .*another"):
            other.run(away(squares), np.ones(1))

    def test_a_cluster_that_gives_no_workers_is_told(
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

    def test_what_cannot_be_read_here_is_told(self, executor: pn.Executor) -> None:
        class Local:
            def __reduce__(self) -> Any:
                return _elsewhere, (os.getpid(),)

        def odd(x: Any) -> pn.Evaluation:
            return pn.Evaluation(x.sum(), state=Local())

        with pytest.raises(pn.TermError, match="odd: its result cannot be read here: RuntimeError: not here"):
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
            with pytest.raises(pn.TermError, match="slow: the executor was closed before it was done"):
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

    def test_a_cluster_without_room_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @ray.remote(num_cpus=2)
        class Theirs:
            def hello(self) -> str:
                return "hello"

        eventually(lambda: ray.available_resources().get("CPU") == 2.0)
        one = Theirs.remote()
        ray.get(one.hello.remote())
        monkeypatch.setattr(ray_module, "_LOADING", 1.0)
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

    def test_a_cluster_that_cannot_be_reached_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.fixture
def nodes() -> Iterator[Any]:
    """Two machines, both of them this one, and a node that only holds the cluster together."""
    from ray.cluster_utils import Cluster as Machines

    memory = {"object_store_memory": 100_000_000, "include_dashboard": False}
    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 0, **memory})
    first, second = (machines.add_node(num_cpus=2, object_store_memory=100_000_000) for _ in range(2))
    ray.init(address=machines.address, log_to_driver=False, logging_level=logging.ERROR)
    machines.wait_for_nodes()
    yield SimpleNamespace(machines=machines, first=first, second=second)
    ray.shutdown()
    machines.shutdown()


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
