"""The pools of threads and of coroutines by themselves."""

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.execution.pools.asynchronous import Async
from penalties.execution.pools.threads import Threads

from .terms import settled, thread_task


class TestThreads:
    def test_a_task_cancelled_before_it_begins_never_does(self) -> None:
        done, ran = threading.Event(), []

        def wait(x: Any) -> Any:
            done.wait(20.0)
            return x.sum()

        def note(x: Any) -> Any:
            ran.append(1)
            return x.sum()

        pool = Threads(1)
        first, second = pool.start(thread_task(wait)), pool.start(thread_task(note))
        second.cancel()
        done.set()
        assert float(first.result().value) == 1.0
        with pytest.raises(pn.TermError, match="term: was cancelled"):
            second.result()
        pool.close()
        assert not ran

    def test_leaving_twice_counts_once(self) -> None:
        done = threading.Event()

        def wait(x: Any) -> Any:
            done.wait(20.0)
            return x.sum()

        pool = Threads(1)
        running = pool.start(thread_task(wait))
        while running.started is None:
            time.sleep(0.01)
        assert pool.abandon(running)
        assert pool.abandon(running)
        assert pool.abandoned == 1
        done.set()
        pool.close()


class TestLoop:
    def test_a_term_that_hangs_before_it_gives_an_awaitable_is_abandoned(self) -> None:
        done = threading.Event()

        def wait(x: Any) -> Any:
            done.wait(20.0)
            return x.sum()

        pool = Async()
        running = pool.start(thread_task(wait, timeout=0.05))
        with pytest.raises(pn.TermTimeoutError, match="it was abandoned"):
            running.result()
        running.cancel()
        assert pool.abandoned == 1
        done.set()
        pool.close()

    def test_cancelling_before_the_awaitable_is_there(self) -> None:
        done = threading.Event()

        def late(x: Any) -> Any:
            done.wait(20.0)
            return asyncio.sleep(20.0)

        pool = Async()
        running = pool.start(thread_task(late))
        while running.thread.started is None:
            time.sleep(0.01)
        running.cancel()
        done.set()
        with pytest.raises(pn.TermError, match="term: was cancelled"):
            running.result()
        pool.close()

    def test_closing_under_a_coroutine_that_will_not_stop(self, capfd: pytest.CaptureFixture[str]) -> None:
        ended = threading.Event()

        async def stubborn(x: Any) -> Any:
            while not ended.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)

        pool = Async()
        running = pool.start(thread_task(stubborn, timeout=0.1))
        with pytest.raises(pn.TermTimeoutError):
            running.result()
        thread = pool._thread
        pool.close()
        thread.join(5.0)
        ended.set()
        import gc

        gc.collect()
        assert "destroyed" not in capfd.readouterr().err

    def test_a_coroutine_that_finds_its_loop_gone_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gone = asyncio.new_event_loop()
        gone.close()

        async def never(x: Any) -> Any:
            raise AssertionError("nobody awaits it")

        pool = Async()
        monkeypatch.setattr(pool, "loop", lambda: gone)
        with pytest.raises(pn.TermError, match="term: raised RuntimeError: Event loop is closed"):
            pool.start(thread_task(never)).result()
        pool.close()

    def test_a_loop_that_is_gone_has_nothing_on_it(self) -> None:
        pool = Async()
        loop = pool.loop()
        pool.close()
        while not loop.is_closed():
            time.sleep(0.01)
        assert not pool.runs_on(None, loop)

    def test_a_blocked_loop_is_counted_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from penalties.execution.pools import asynchronous

        monkeypatch.setattr(asynchronous, "_BEAT", 0.05)
        pool, done = Async(), threading.Event()
        loop = pool.loop()
        loop.call_soon_threadsafe(done.wait, 20.0)
        assert pool.runs_on(None, loop)
        assert pool.runs_on(None, loop)
        assert pool.abandoned == 1
        done.set()
        settled(pool)
        pool.close()

    def test_modes_of_coroutines_do_not_mix(self, executor: pn.Executor) -> None:
        async def fetches(x: Any) -> Any:
            with torch.no_grad():
                await asyncio.sleep(0.05)
                assert not torch.is_grad_enabled()
            return (x**2).sum()

        async def later(x: Any) -> Any:
            await asyncio.sleep(0.01)
            with torch.no_grad():
                await asyncio.sleep(0.08)
            return (x**2).sum()

        async def between(x: Any) -> Any:
            await asyncio.sleep(0.03)
            return (x**2).sum()

        for _ in range(2):
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            executor.run(pn.Pipeline([fetches, later, between]), {"x": x}).total.backward()
            assert x.grad.tolist() == [6.0, 12.0]
