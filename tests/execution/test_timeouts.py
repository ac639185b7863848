"""Terms that are late: what is stopped, what is abandoned, and when the clock starts."""

import asyncio
import contextlib
import ctypes
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.execution.pools import threads as threads_module
from penalties.execution.pools.threads import Threads

from .terms import ELSEWHERE, healthy, probe, settled, thread_task


def hang(x: Any) -> Any:
    time.sleep(2.0)
    return x.sum()


def hang_long(x: Any) -> Any:
    time.sleep(60.0)
    return x.sum()


async def hang_politely(x: Any) -> Any:
    await asyncio.sleep(60.0)


def hanging(where: str) -> Any:
    return {"async": hang_politely, "process": hang_long, "thread": hang}[where]


class TestManyAtOnce:
    """Terms that hang together are late together: the time of one is not added to that of the next."""

    COUNT = 12

    @pytest.mark.slow
    @pytest.mark.parametrize("where", ["thread", "async"])
    def test_take_the_time_of_one(self, where: Any) -> None:
        released = threading.Event()

        def blocks(x: Any) -> Any:
            released.wait(60)
            return x.sum()

        async def blocks_its_loop(x: Any) -> Any:
            return blocks(x)

        fn = blocks if where == "thread" else blocks_its_loop
        terms = [pn.Term(fn, name=f"{i}", runs=where, timeout=1.5, on_error="skip") for i in range(self.COUNT)]
        with pn.Executor(max_workers=self.COUNT) as executor:
            start = time.monotonic()
            out = executor.run(pn.Pipeline(terms), {"x": np.ones(2)})
            taken = time.monotonic() - start
            released.set()
        assert all(isinstance(term.error, pn.TermTimeoutError) for term in out)
        assert taken < 10.0, "one after another they take more than 18 s"


class TestTimeout:
    @pytest.mark.slow
    def test_a_caller_that_is_held_up_takes_the_answer_that_came_in_time(self, executor: pn.Executor) -> None:
        def briefly(x: Any) -> Any:
            time.sleep(0.3)
            return x.sum()

        def hold_the_lock(x: Any) -> Any:
            time.sleep(0.1)
            # With the interpreter's lock: no other thread of this process runs.
            ctypes.PyDLL(None).sleep(3)
            return x.sum()

        probe(executor, "process")
        pipeline = pn.Pipeline([pn.Term(briefly, runs="process", timeout=1.5), hold_the_lock])
        assert float(executor.run(pipeline, {"x": np.ones(2)}).total) == 4.0

    @pytest.mark.parametrize("where", ELSEWHERE)
    def test_names_the_term_and_its_neighbours_live(self, executor: pn.Executor, where: Any) -> None:
        # A thread that is abandoned belongs to no shared executor.
        own = pn.Executor(max_workers=2) if where == "thread" else contextlib.nullcontext(executor)
        with own as executor:
            probe(executor, where)
            late = pn.Term(hanging(where), name="late", runs=where, timeout=0.3)
            pipeline = pn.Pipeline([late, pn.Term(healthy, runs=where), pn.Term("l1", inputs="x")])
            start = time.monotonic()
            with pytest.raises(pn.TermTimeoutError, match=r"late: took more than 0\.3 s") as caught:
                executor.run(pipeline, {"x": np.array([3.0])})
            assert time.monotonic() - start < (1.9 if where == "thread" else 30.0)
            assert float(caught.value.output.total) == 12.0
            assert caught.value.abandoned == (where == "thread")
            if where == "thread":
                assert executor.abandoned == 1
            else:
                settled(executor)
            probe(executor, where)

    def test_a_thread_that_comes_back_is_no_longer_abandoned(self) -> None:
        done = threading.Event()

        def wait(x: Any) -> Any:
            done.wait(10.0)
            return x.sum()

        with pn.Executor(max_workers=1) as executor:
            out = executor.run(
                pn.Pipeline([pn.Term(wait, runs="thread", timeout=0.1, on_error="skip")]), {"x": np.ones(1)}
            )
            assert out["wait"].error.abandoned
            assert executor.abandoned == 1
            done.set()
            settled(executor)
            probe(executor, "thread")

    def test_a_term_is_an_error_while_too_many_threads_are_abandoned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threads_module, "_ABANDONED", 2)
        done = threading.Event()

        def wait(x: Any) -> Any:
            done.wait(10.0)
            return x.sum()

        with pn.Executor(max_workers=1) as executor:
            pipeline = pn.Pipeline([pn.Term(wait, runs="thread", timeout=0.05)])
            for _ in range(2):
                with pytest.raises(pn.TermTimeoutError):
                    executor.run(pipeline, {"x": np.ones(1)})
            with pytest.raises(pn.TermError, match='2 threads were abandoned and still run.*runs="process"'):
                executor.run(pipeline, {"x": np.ones(1)})
            done.set()

    def test_a_thread_that_was_late_is_late_whenever_it_is_asked(self, executor: pn.Executor) -> None:
        finished = threading.Event()

        def late(x: Any) -> Any:
            time.sleep(0.2)
            finished.set()
            return x.sum()

        def first(x: Any) -> Any:
            finished.wait(60)
            time.sleep(0.5)
            return x.sum()

        terms = [pn.Term(first, runs="thread"), pn.Term(late, runs="thread", timeout=0.1)]
        with pytest.raises(pn.TermTimeoutError, match=r"late: took [\d.]+ s; expected at most 0\.1 s"):
            executor.run(pn.Pipeline(terms), np.ones(1))

    def test_waiting_for_a_thread_does_not_count(self) -> None:
        def slow(x: Any) -> Any:
            time.sleep(0.2)
            return x.sum()

        terms = [pn.Term(slow, name=f"t{i}", runs="thread", timeout=0.4) for i in range(4)]
        with pn.Executor(max_workers=1) as executor:
            assert float(executor.run(pn.Pipeline(terms), np.ones(1)).total) == 4.0

    def test_the_clock_starts_with_the_thread(self) -> None:
        def slow(x: Any) -> Any:
            time.sleep(float(x.sum()))
            return x.sum()

        pool = Threads(1)
        first = pool.start(thread_task(slow, seconds=0.5))
        second = pool.start(thread_task(slow, timeout=0.3, seconds=0.2))
        assert float(second.result().value) == 0.2
        assert float(first.result().value) == 0.5
        pool.close()

    def test_waiting_for_a_process_does_not_count(self, executor: pn.Executor) -> None:
        def slow(x: Any) -> Any:
            time.sleep(0.3)
            return x.sum()

        terms = [pn.Term(slow, name=f"t{i}", runs="process", timeout=0.5) for i in range(5)]
        assert float(executor.run(pn.Pipeline(terms), np.ones(1)).total) == 5.0

    def test_loading_does_not_count(self, executor: pn.Executor) -> None:
        class Slow:
            def __setstate__(self, state: Any) -> None:
                time.sleep(0.8)

            def __getstate__(self) -> Any:
                return {"some": "state"}

            def __call__(self, x: Any) -> Any:
                return x.sum()

        term = pn.Term(Slow(), name="slow", runs="process", timeout=0.5)
        assert float(executor.run(pn.Pipeline([term]), np.ones(2)).total) == 2.0

    def test_a_coroutine_that_will_not_stop_is_reported(self) -> None:
        ended = threading.Event()

        async def stubborn(x: Any) -> Any:
            while not ended.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)

        with pn.Executor() as executor:
            with pytest.raises(pn.TermTimeoutError, match="could not be cancelled") as caught:
                executor.run(pn.Pipeline([pn.Term(stubborn, timeout=0.2)]), {"x": np.ones(1)})
            assert caught.value.abandoned
            assert executor.abandoned == 1
            probe(executor, "async")
            ended.set()

    def test_a_coroutine_that_blocks_its_loop_is_reported_and_the_next_has_another(self) -> None:
        ended = threading.Event()

        async def blocking(x: Any) -> Any:
            ended.wait(10.0)

        async def polite(x: Any) -> Any:
            await asyncio.sleep(0.01)
            return x.sum()

        with pn.Executor() as executor:
            with pytest.raises(pn.TermTimeoutError, match="could not be cancelled") as caught:
                executor.run(pn.Pipeline([pn.Term(blocking, timeout=0.2)]), {"x": np.ones(1)})
            assert caught.value.abandoned
            assert float(executor.run(pn.Pipeline([polite]), {"x": np.ones(2)}).total) == 2.0
            ended.set()

    def test_a_coroutine_that_blocks_its_loop_fails_alone(self) -> None:
        ended = threading.Event()

        async def blocking(x: Any) -> Any:
            ended.wait(10.0)

        async def polite(x: Any) -> Any:
            await asyncio.sleep(0.1)
            return x.sum()

        neighbours = [pn.Term(polite, name=f"polite {i}", timeout=5.0) for i in range(30)]
        start = time.monotonic()
        with pn.Executor() as executor:
            pipeline = pn.Pipeline([pn.Term(blocking, timeout=0.05, on_error="skip"), *neighbours])
            assert float(executor.run(pipeline, {"x": np.ones(1)}).total) == 30.0
            assert executor.abandoned == 1
            ended.set()
        assert time.monotonic() - start < 10.0

    @pytest.mark.parametrize("how", ["stop", "exit"])
    def test_a_coroutine_that_stops_its_loop_fails_alone_and_the_next_has_another(self, how: str) -> None:
        async def stopping(x: Any) -> Any:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.stop if how == "stop" else sys.exit)
            await asyncio.sleep(60.0)

        async def polite(x: Any) -> Any:
            await asyncio.sleep(0.01)
            return x.sum()

        with pn.Executor() as executor:
            for _ in range(2):
                terms = [pn.Term(stopping, name="same", timeout=20.0, on_error="skip"), pn.Term(polite)]
                out = executor.run(pn.Pipeline(terms), {"x": np.ones(1)})
                assert float(out.total) == 1.0
                assert "raised CancelledError" in str(out["same"].error)
            # A term keeps its loop by its name.
            terms = [pn.Term(polite, name="same"), pn.Term(polite)]
            assert float(executor.run(pn.Pipeline(terms), {"x": np.ones(1)}).total) == 2.0
            # Closing finds one that was stopped, too.
            executor.run(pn.Pipeline([pn.Term(stopping, on_error="skip")]), {"x": np.ones(1)})

    def test_an_inline_term_is_reported_after_the_fact(self, executor: pn.Executor) -> None:
        def slow(x: Any) -> Any:
            time.sleep(0.05)
            return x.sum()

        with pytest.warns(RuntimeWarning, match=r"slow: took 0\.\d+ s, more than its timeout of 0\.01 s"):
            out = executor.run(pn.Pipeline([pn.Term(slow, timeout=0.01)]), {"x": np.ones(2)})
        assert float(out.total) == 2.0
