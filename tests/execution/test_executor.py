"""How an executor runs terms, and what it leaves alone."""

import asyncio
import gc
import os
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties import schedules, telemetry

from .terms import ELSEWHERE


class TestMemory:
    @pytest.mark.parametrize("where", ["inline", *ELSEWHERE])
    @pytest.mark.parametrize("kind", ["well", "raises", "waits"])
    @pytest.mark.parametrize("wrt", [None, "x"])
    def test_inputs_go_with_the_output_and_not_when_python_looks(
        self, executor: pn.Executor, where: Any, kind: str, wrt: Any
    ) -> None:
        def well(x: Any) -> Any:
            return (x**2).sum()

        def raises(x: Any) -> Any:
            raise ValueError("no")

        async def later(x: Any) -> Any:
            await asyncio.sleep(0)
            return well(x) if kind == "well" else raises(x)

        async def waits(x: Any) -> Any:
            await asyncio.sleep(30.0)

        if kind == "waits" and where != "async":
            pytest.skip("cannot be cancelled there")
        function = waits if kind == "waits" else later if where == "async" else {"well": well, "raises": raises}[kind]
        runs = "inline" if where == "async" else where
        term = pn.Term(function, name="term", runs=runs, on_error="skip", timeout=0.1 if kind == "waits" else 60.0)
        for _ in range(2):
            x = torch.ones(4, requires_grad=True)
            gc.disable()
            try:
                out = executor.run(pn.Pipeline([term, "l2"]), {"x": x}, wrt=wrt)
                out.total.backward()
                watched = weakref.ref(x)
                del out, x
                end = time.monotonic() + 10.0
                while watched() is not None and time.monotonic() < end:
                    time.sleep(0.01)
                assert watched() is None
            finally:
                gc.enable()


class TestSequential:
    def test_runs_everything_here_in_order(self) -> None:
        order: list[tuple[str, int]] = []

        def noted(name: str) -> Any:
            def term(x: Any) -> Any:
                order.append((name, threading.get_ident()))
                return x.sum()

            return term

        async def awaited(x: Any) -> Any:
            await asyncio.sleep(0)
            order.append(("d", threading.get_ident()))
            return x.sum()

        terms = [
            pn.Term(noted(name), name=name, runs=where)
            for name, where in zip("abc", (*ELSEWHERE[:2], "inline"), strict=True)
        ]
        x = torch.ones(2, requires_grad=True)
        with pn.Executor(sequential=True) as executor:
            out = executor.run(pn.Pipeline([*terms, pn.Term(awaited, name="d")]), x)
        assert order == [(name, threading.get_ident()) for name in "abcd"]
        out.total.backward()
        assert x.grad.tolist() == [4.0, 4.0]

    def test_inside_a_running_loop(self) -> None:
        async def awaited(x: Any) -> Any:
            await asyncio.sleep(0)
            return x.sum()

        async def main() -> float:
            with pn.Executor(sequential=True) as executor:
                return float(executor.run(pn.Pipeline([awaited]), {"x": np.ones(3)}).total)

        assert asyncio.run(main()) == 3.0


class TestFunctionsTravelOnce:
    def test_a_schedule_does_not_send_again(self, executor: pn.Executor) -> None:
        class Counted:
            name = "counted"
            pickled = 0

            def __reduce__(self) -> Any:
                Counted.pickled += 1
                return _Loaded, ()

            def __call__(self, x: Any) -> Any:
                return x.sum()

        pipeline = pn.Pipeline([pn.Term(Counted(), runs="process")])
        for step in range(6):
            weighted = schedules.apply(pipeline, {"counted": schedules.linear(0.0, 1.0, 6)}, step)
            executor.run(weighted, {"x": np.ones(2)})
        assert Counted.pickled == 1

    def test_lambdas_closures_and_partials_work(self, executor: pn.Executor) -> None:
        import functools

        factor = 3.0
        terms = [
            pn.Term(lambda x: factor * x.sum(), name="closure", inputs="x", runs="process"),
            pn.Term(
                functools.partial(lambda scale, x: scale * x.sum(), 2.0), name="partial", inputs="x", runs="process"
            ),
        ]
        assert float(executor.run(pn.Pipeline(terms), {"x": np.ones(2)}).total) == 10.0


class _Loaded:
    name = "counted"

    def __call__(self, x: Any) -> Any:
        return x.sum()


class TestWorkers:
    def test_threads_of_native_libraries_are_capped(self, executor: pn.Executor) -> None:
        def count(x: Any) -> Any:
            return x.sum(), {"torch": torch.get_num_threads(), "omp": int(os.environ["OMP_NUM_THREADS"])}

        metrics = executor.run(pn.Pipeline([pn.Term(count, runs="process")]), torch.ones(2)).metrics()
        assert metrics["count/torch"] == metrics["count/omp"] == 1.0

    def test_a_worker_keeps_what_a_term_keeps(self, executor: pn.Executor) -> None:
        def opened(x: Any) -> Any:
            import builtins

            made = builtins.__dict__.setdefault("opened_in", [])
            if not made:
                made.append(os.getpid())
            return x.sum(), {"mine": made[0] == os.getpid()}

        for _ in range(4):
            assert executor.run(pn.Pipeline([pn.Term(opened, runs="process")]), {"x": np.ones(1)}).metrics()[
                "opened/mine"
            ]


class TestEvents:
    def test_terms_elsewhere_are_announced_as_others(self, executor: pn.Executor) -> None:
        heard: list[tuple[str, Any]] = []
        identity = telemetry.attach(lambda event, measured, metadata: heard.append((event, metadata.get("name"))))
        try:
            pipeline = pn.Pipeline([pn.Term("l1", runs="thread"), "l2"])
            executor.run(pipeline, np.ones(2))
            assert sorted(heard) == sorted(
                [
                    ("pipeline.start", None),
                    ("term.start", "l1"),
                    ("term.start", "l2"),
                    ("term.stop", "l1"),
                    ("term.stop", "l2"),
                    ("pipeline.stop", None),
                ]
            )
            heard.clear()
            broken = pn.Term(lambda x: None, name="broken", inputs="input", runs="thread")
            with pytest.raises(pn.TermError):
                executor.run(pn.Pipeline([broken]), {"input": np.ones(2)})
            assert [event for event, _ in heard] == [
                "pipeline.start",
                "term.start",
                "term.exception",
                "pipeline.exception",
            ]
        finally:
            telemetry.detach(identity)


def test_two_threads_may_use_one_executor(executor: pn.Executor) -> None:
    pipeline = pn.Pipeline([pn.Term("l2", runs="process"), pn.Term("l1", runs="thread")])
    found: list[float] = []

    def work(value: float) -> None:
        expected = 20_000 * (value**2 + value)
        found.extend(float(executor.run(pipeline, np.full(20_000, value)).total) - expected for _ in range(5))

    threads = [threading.Thread(target=work, args=(value,)) for value in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    assert max(map(abs, found)) < 1e-6


def test_a_base_loss_may_run_elsewhere(executor: pn.Executor) -> None:
    pipeline = pn.Pipeline(["l1"], base=pn.Term("l2", runs="thread"))
    metrics = executor.run(pipeline, np.array([2.0])).metrics()
    assert (metrics["base_loss"], metrics["total"]) == (4.0, 6.0)


def test_cosines_alone_ask_for_gradients(executor: pn.Executor) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    out = executor.run(pn.Pipeline([pn.Term("l1", runs="thread"), "l2"]), x, cosines=True)
    assert out.cosines.shape == (2, 2)


def test_a_term_that_reads_no_array_may_run_elsewhere(executor: pn.Executor) -> None:
    words = pn.Term(len, name="words", inputs="texts", differentiable=False, runs="thread")
    deeper = pn.Term(len, name="deeper", inputs="batch.texts", differentiable=False, runs="thread")
    late: Future[Any] = Future()
    late.set_result(torch.ones(2))
    inputs = {"texts": ["a", "b"], "batch": {"texts": ["c"]}, "x": late}
    out = executor.run(pn.Pipeline([words, deeper, pn.Term("l1", inputs="x")]), inputs)
    assert out.metrics()["total"] == 5.0


def test_small_and_large_arrays_travel_together(executor: pn.Executor) -> None:
    inputs = {"small": np.ones(3), "large": np.ones(50_000)}
    term = pn.Term(lambda small, large: small.sum() + large.sum(), name="both", runs="process")
    assert float(executor.run(pn.Pipeline([term]), inputs).total) == 50_003.0


def test_arrays_of_two_libraries(executor: pn.Executor) -> None:
    def scaled(factor: Any, x: Any) -> Any:
        return float(factor[0]) * x.sum()

    x = torch.ones(2, requires_grad=True)
    executor.run(pn.Pipeline([pn.Term(scaled, runs="thread")]), {"factor": np.array([3.0]), "x": x}).total.backward()
    assert x.grad.tolist() == [3.0, 3.0]
