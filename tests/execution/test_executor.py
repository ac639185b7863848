"""How an executor runs terms: early, on other loops, in the caller's context, and what it leaves alone."""

import asyncio
import contextvars
import gc
import inspect
import os
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penalties as pn
from penalties import schedules, telemetry
from penalties.execution.executor import _close_all
from penalties.execution.pools import asynchronous

PLACES = ("thread", "process", "async")
WHERE = contextvars.ContextVar("where", default="nowhere")


class TestEarly:
    @pytest.mark.parametrize("place", PLACES)
    def test_terms_start_before_inputs_that_they_do_not_read(
        self, executor: pn.Executor, place: Any, tmp_path: Path
    ) -> None:
        mark = tmp_path / "started"

        def early(data: Any) -> Any:
            mark.touch()
            return data.sum()

        late: Future[Any] = Future()

        def forward() -> None:
            # Only once the other term has begun.
            end = time.monotonic() + 20.0
            while not mark.exists() and time.monotonic() < end:
                time.sleep(0.01)
            late.set_result(np.array([1.0, 2.0]) if mark.exists() else np.zeros(2))

        threading.Thread(target=forward).start()
        pipeline = pn.Pipeline(
            [pn.Term(early, runs=place), pn.Term("l1", inputs="logprobs"), pn.Term("l2", inputs="logprobs", runs=place)]
        )
        out = executor.run(pipeline, {"data": np.ones(3), "logprobs": late})
        assert [float(term.value) for term in out] == [3.0, 3.0, 5.0]

    @pytest.mark.parametrize("wrt", [None, "x"])
    def test_terms_that_run_here_use_the_time_too(self, executor: pn.Executor, wrt: Any) -> None:
        late: Future[Any] = Future()
        calls: list[str] = []
        scale = torch.tensor(2.0, requires_grad=True)

        def counts(data: Any) -> Any:
            calls.append("counts")
            if len(calls) == 1:
                late.set_result(torch.ones(2, requires_grad=True))
            return torch.tensor(3.0), {"here": 1.0}

        def fails(data: Any) -> Any:
            calls.append("fails")
            raise ValueError("no")

        def learned(data: Any) -> Any:
            return scale * 5

        pipeline = pn.Pipeline(
            [counts, pn.Term(fails, on_error="skip"), learned, pn.Term("l2", inputs="x"), pn.Term("l1", inputs="data")]
        )
        out = executor.run(pipeline, {"data": torch.ones(3), "x": late}, wrt=wrt)
        assert calls == ["counts", "fails"]
        assert out.metrics()["counts/here"] == 1.0
        assert "raised ValueError: no" in str(out["fails"].error)
        assert out.total.item() == 3.0 + 10.0 + 2.0 + 3.0
        out.total.backward()
        assert scale.grad.item() == 5.0
        assert late.result().grad.tolist() == [2.0, 2.0]
        if wrt:
            assert out["counts"].grad_error == "it does not read x"

    def test_terms_here_that_a_gradient_is_wanted_of_wait_for_the_others(self, executor: pn.Executor) -> None:
        late: Future[Any] = Future()
        threading.Timer(0.1, late.set_result, [torch.ones(2)]).start()
        pipeline = pn.Pipeline([pn.Term("l2", inputs="data"), pn.Term("l1", inputs="x")])
        out = executor.run(pipeline, {"data": torch.ones(3), "x": late}, wrt=["data", "x"])
        assert out.gradient["data"].tolist() == [2.0, 2.0, 2.0]

    def test_gradients_asked_for_are_taken_early_too(self, executor: pn.Executor) -> None:
        late: Future[Any] = Future()
        threading.Timer(0.1, late.set_result, [torch.ones(2)]).start()
        pipeline = pn.Pipeline([pn.Term("l2", inputs="data", runs="thread"), pn.Term("l1", inputs="logprobs")])
        out = executor.run(pipeline, {"data": torch.ones(3), "logprobs": late}, wrt=["data", "logprobs"])
        assert out.gradient["data"].tolist() == [2.0, 2.0, 2.0]
        assert out.gradient["logprobs"].tolist() == [1.0, 1.0]

    def test_an_input_that_fails_ends_what_has_begun(self, executor: pn.Executor) -> None:
        late: Future[Any] = Future()
        late.set_exception(ConnectionError("no forward"))
        pipeline = pn.Pipeline(
            [
                pn.Term(lambda data: time.sleep(30), name="long", inputs="data", runs="process"),
                pn.Term("l1", inputs="x"),
            ]
        )
        start = time.monotonic()
        with pytest.raises(ConnectionError, match="no forward"):
            executor.run(pipeline, {"data": np.ones(1), "x": late})
        assert time.monotonic() - start < 20.0

    def test_terms_that_rest_or_are_off_do_not_start(self, executor: pn.Executor) -> None:
        late: Future[Any] = Future()
        late.set_result(np.ones(2))
        rests = pn.Term("l1", name="rests", inputs="data", runs="thread", every=2)
        off = pn.Term("l1", name="off", inputs="data", runs="thread", enabled=False)
        out = executor.run(
            pn.Pipeline([rests, off, pn.Term("l1", inputs="x")]), {"data": np.ones(3), "x": late}, step=1
        )
        assert out.names == ("l1",)

    def test_sequential_waits_for_all(self) -> None:
        late: Future[Any] = Future()
        late.set_result(np.ones(2))
        with pn.Executor(sequential=True) as executor:
            pipeline = pn.Pipeline([pn.Term("l1", inputs="data", runs="process"), pn.Term("l2", inputs="x")])
            assert float(executor.run(pipeline, {"data": np.ones(3), "x": late}).total) == 5.0

    def test_an_awaitable_is_for_run_async(self, executor: pn.Executor) -> None:
        async def forward() -> Any:
            return np.ones(2)

        coming = forward()
        with pytest.raises(pn.InputError, match='the input "x" is an awaitable; await it, or use run_async'):
            executor.run(pn.Pipeline([pn.Term("l1", inputs="x")]), {"x": coming})
        coming.close()


class TestAsync:
    def test_the_callers_loop_goes_on(self, executor: pn.Executor) -> None:
        def slow(x: Any) -> Any:
            time.sleep(0.3)
            return x.sum()

        async def main() -> tuple[float, int]:
            beats = 0

            async def beat() -> None:
                nonlocal beats
                while True:
                    await asyncio.sleep(0.01)
                    beats += 1

            beating = asyncio.ensure_future(beat())
            out = await executor.run_async(pn.Pipeline([pn.Term(slow), pn.Term("l1", inputs="x")]), {"x": np.ones(2)})
            beating.cancel()
            return float(out.total), beats

        total, beats = asyncio.run(main())
        assert total == 4.0
        assert beats > 5

    def test_terms_are_awaited_on_another_loop(self, executor: pn.Executor) -> None:
        async def whose(x: Any) -> Any:
            return x.sum(), {"thread": threading.get_ident(), "loop": id(asyncio.get_running_loop())}

        async def main() -> None:
            out = await executor.run_async(pn.Pipeline([whose]), {"x": np.ones(2)})
            metrics = out.metrics()
            assert metrics["whose/loop"] != id(asyncio.get_running_loop())
            assert metrics["whose/thread"] != threading.get_ident()

        asyncio.run(main())

    def test_inputs_may_be_awaited(self, executor: pn.Executor) -> None:
        async def forward() -> Any:
            await asyncio.sleep(0.05)
            return torch.ones(2, requires_grad=True)

        async def main() -> pn.LossOutput:
            return await executor.run_async(pn.Pipeline([pn.Term("l1", inputs="x")]), {"x": forward()}, wrt="x")

        assert asyncio.run(main()).gradient["x"].tolist() == [1.0, 1.0]

    def test_the_one_input_may_be_promised(self, executor: pn.Executor) -> None:
        async def forward() -> Any:
            return np.ones(2)

        async def main() -> float:
            return float((await executor.run_async(pn.Pipeline(["l1"]), forward())).total)

        assert asyncio.run(main()) == 2.0
        promised: Future[Any] = Future()
        promised.set_result(np.ones(3))
        assert float(executor.run(pn.Pipeline(["l1"]), promised).total) == 3.0

    def test_cancelling_while_an_input_is_awaited(self, executor: pn.Executor) -> None:
        async def forward() -> Any:
            await asyncio.sleep(60)

        async def main() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(executor.run_async(pn.Pipeline(["l1"]), {"x": forward()}), 0.2)

        asyncio.run(main())

    def test_sequential_in_a_loop_raises_what_the_term_raises(self) -> None:
        async def broken(x: Any) -> Any:
            raise ValueError("no luck")

        async def main() -> None:
            with pn.Executor(sequential=True) as executor:
                executor.run(pn.Pipeline([broken]), {"x": np.ones(3)})

        with pytest.raises(pn.TermError, match="broken: raised ValueError: no luck"):
            asyncio.run(main())

    def test_an_input_that_fails_is_raised(self, executor: pn.Executor) -> None:
        async def forward() -> Any:
            raise ConnectionError("no forward")

        async def main() -> None:
            await executor.run_async(pn.Pipeline([pn.Term("l1", inputs="x")]), {"x": forward()})

        with pytest.raises(ConnectionError, match="no forward"):
            asyncio.run(main())

    @pytest.mark.parametrize("place", PLACES)
    def test_cancelling_stops_the_terms(self, executor: pn.Executor, place: Any) -> None:
        async def forever(x: Any) -> Any:
            await asyncio.sleep(60)

        def long(x: Any) -> Any:
            time.sleep(60 if place == "process" else 1.0)
            return x.sum()

        async def main() -> None:
            pipeline = pn.Pipeline([pn.Term(forever if place == "async" else long, name="long", runs=place)])
            running = asyncio.ensure_future(executor.run_async(pipeline, {"x": np.ones(1)}))
            await asyncio.sleep(1.0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        start = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - start < 20.0

    def test_many_wait_at_once(self, executor: pn.Executor) -> None:
        waiting: list[int] = []
        most: list[int] = []

        async def wait(x: Any) -> Any:
            waiting.append(1)
            most.append(len(waiting))
            await asyncio.sleep(0.3)
            waiting.pop()
            return x.sum()

        pipeline = pn.Pipeline([pn.Term(wait, name=f"t{i}") for i in range(100)])
        assert float(executor.run(pipeline, {"x": np.ones(1)}).total) == 100.0
        assert max(most) > 50

    def test_a_call_may_return_a_future(self, executor: pn.Executor) -> None:
        def promised(x: Any) -> Future[Any]:
            found: Future[Any] = Future()
            threading.Timer(0.05, found.set_result, [x.sum()]).start()
            return found

        for place in ("async", "thread"):
            out = executor.run(pn.Pipeline([pn.Term(promised, runs=place)]), {"x": np.ones(2)})
            assert float(out.total) == 2.0

    def test_a_coroutine_function_in_a_process(self, executor: pn.Executor) -> None:
        async def there(x: Any) -> Any:
            await asyncio.sleep(0.01)
            return (x**2).sum(), {"pid": os.getpid()}

        x = torch.tensor([2.0], requires_grad=True)
        out = executor.run(pn.Pipeline([pn.Term(there, runs="process")]), x)
        out.total.backward()
        assert x.grad.tolist() == [4.0]
        assert out.metrics()["there/pid"] != os.getpid()

    def test_a_coroutine_is_differentiated_by_jax(self, executor: pn.Executor) -> None:
        async def squares(x: Any) -> Any:
            await asyncio.sleep(0.01)
            return jnp.sum(x**2)

        gradient = jax.grad(lambda x: executor.run(pn.Pipeline([squares]), {"x": x}).total)(jnp.array([3.0]))
        assert gradient.tolist() == [6.0]

    def test_a_pipeline_alone_awaits_nothing(self) -> None:
        def sneaky(x: Any) -> Any:
            return asyncio.sleep(0, x.sum())

        with pytest.raises(pn.TermError, match='sneaky: returned an awaitable; give it runs="async"'):
            pn.Pipeline([sneaky])(np.ones(1))


def test_a_coroutine_whose_turn_never_came_is_closed() -> None:
    async def never() -> None: ...

    coroutine = never()
    asynchronous._close_unstarted(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    asynchronous._close_unstarted(Future())


def test_a_cancelled_run_evaluates_no_further_term(executor: pn.Executor) -> None:
    running, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    def first(x: Any) -> Any:
        running.set()
        assert go_on.wait(30)
        return x.sum()

    def second(x: Any) -> Any:
        ran.append("second")
        return x.sum()

    async def main() -> None:
        run = asyncio.ensure_future(executor.run_async(pn.Pipeline([first, second]), np.ones(2)))
        await asyncio.to_thread(running.wait, 30)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        go_on.set()

    asyncio.run(main())
    time.sleep(0.05)
    assert ran == []


class TestMemory:
    @pytest.mark.parametrize("place", ["inline", *PLACES])
    @pytest.mark.parametrize("kind", ["well", "raises", "waits"])
    @pytest.mark.parametrize("wrt", [None, "x"])
    def test_inputs_go_with_the_output_and_not_when_python_looks(
        self, executor: pn.Executor, place: Any, kind: str, wrt: Any
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

        if kind == "waits" and place != "async":
            pytest.skip("cannot be cancelled there")
        function = waits if kind == "waits" else later if place == "async" else {"well": well, "raises": raises}[kind]
        runs = "inline" if place == "async" else place
        term = pn.Term(function, name="term", runs=runs, on_error="skip", timeout=0.1 if kind == "waits" else 60.0)
        for _ in range(2):
            x = torch.ones(4, requires_grad=True)
            gc.collect()
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
            pn.Term(noted(name), name=name, runs=place)
            for name, place in zip("abc", (*PLACES[:2], "inline"), strict=True)
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


class TestContext:
    @pytest.mark.parametrize("place", ["thread", "async"])
    def test_context_variables_follow(self, executor: pn.Executor, place: Any) -> None:
        async def awaited(x: Any) -> Any:
            await asyncio.sleep(0)
            return x.sum(), {"here": WHERE.get() == "here"}

        def called(x: Any) -> Any:
            return x.sum(), {"here": WHERE.get() == "here"}

        term = pn.Term(awaited if place == "async" else called, name="term", runs=place)
        token = WHERE.set("here")
        try:
            assert executor.run(pn.Pipeline([term]), {"x": np.ones(1)}).metrics()["term/here"] == 1.0
        finally:
            WHERE.reset(token)
        assert executor.run(pn.Pipeline([term]), {"x": np.ones(1)}).metrics()["term/here"] == 0.0

    @pytest.mark.parametrize("place", ["thread", "async"])
    def test_modes_of_torch_follow(self, executor: pn.Executor, place: Any) -> None:
        def modes() -> dict[str, float]:
            return {
                "grad": torch.is_grad_enabled(),
                "inference": torch.is_inference_mode_enabled(),
                "autocast": torch.is_autocast_enabled("cpu"),
                "meta": torch.get_default_device().type == "meta",
            }

        async def awaited(x: Any) -> Any:
            before = modes()
            await asyncio.sleep(0)
            assert before == modes()
            return x.detach().sum(), before

        def called(x: Any) -> Any:
            return x.detach().sum(), modes()

        def found() -> dict[str, bool]:
            term = pn.Term(awaited if place == "async" else called, name="term", runs=place)
            metrics = executor.run(pn.Pipeline([term]), {"x": x}).metrics()
            return {key: bool(metrics[f"term/{key}"]) for key in modes()}

        x = torch.ones(2)
        assert found() == {"grad": True, "inference": False, "autocast": False, "meta": False}
        with torch.no_grad():
            assert found()["grad"] is False
        with torch.inference_mode():
            assert found()["inference"] is True
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert found()["autocast"] is True
        with torch.device("meta"):
            assert found()["meta"] is True

    def test_the_default_device_of_jax_follows(self, executor: pn.Executor) -> None:
        device = jax.devices()[0]

        def where(x: Any) -> Any:
            return jnp.sum(x), {"same": jax.config.jax_default_device is device}

        with jax.default_device(device):
            out = executor.run(pn.Pipeline([pn.Term(where, runs="thread")]), {"x": jnp.ones(2)})
        assert out.metrics()["where/same"] == 1.0

    def test_without_gradients_none_are_taken(self, executor: pn.Executor) -> None:
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            out = executor.run(pn.Pipeline([pn.Term("l1", runs="thread"), pn.Term("l2", runs="process")]), x)
        assert not out.total.requires_grad

    def test_a_library_that_is_not_loaded_has_no_modes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from penalties.execution.ambient import Modes

        monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.delitem(sys.modules, "jax")
        modes = Modes()
        with modes():
            assert "torch" not in sys.modules


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


def test_a_fork_neither_runs_nor_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = pn.Executor()
    executor.run(pn.Pipeline([pn.Term("l1", runs="thread")]), np.ones(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(RuntimeError, match="belongs to the process that created it"):
            executor.run(pn.Pipeline(["l1"]), np.ones(1))
        _close_all(executor._pools, executor._process)
    assert executor._pools
    executor.close()
    assert not executor._pools
