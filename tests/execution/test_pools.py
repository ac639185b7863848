"""The pools of threads and of coroutines by themselves."""

import asyncio
import contextlib
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.execution.pools import asynchronous
from penalties.execution.pools.asynchronous import Async
from penalties.execution.pools.threads import Threads

from .terms import settled, thread_task


def no_threads(patch: pytest.MonkeyPatch, name: str) -> None:
    """As where the system allows no more of them."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", refuse)


class TestThreads:
    def test_where_no_thread_can_start_the_term_fails_and_the_next_may_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pool = Threads(1)
        with monkeypatch.context() as patch:
            no_threads(patch, "penalties-term")
            running = pool.start(thread_task(lambda x: x.sum(), timeout=0.05))
            with pytest.raises(pn.TermError, match="term: no thread could be started for it"):
                running.result()
        assert float(pool.start(thread_task(lambda x: x.sum())).result().value) == 1.0
        pool.close()

    def test_a_thread_that_could_not_start_is_made_up_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pool = Threads(1)
        with monkeypatch.context() as patch:
            no_threads(patch, "penalties-term")
            running = pool.start(thread_task(lambda x: x.sum(), timeout=0.05))
        assert float(running.result().value) == 1.0
        pool.close()

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

        pool, before = Async(), set(threading.enumerate())
        running = pool.start(thread_task(stubborn, timeout=0.1))
        with pytest.raises(pn.TermTimeoutError):
            running.result()
        loops = set(threading.enumerate()) - before
        pool.close()
        for thread in loops:
            thread.join(5.0)
        ended.set()
        import gc

        gc.collect()
        assert "destroyed" not in capfd.readouterr().err

    def test_a_coroutine_that_finds_its_loop_gone_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def never(x: Any) -> Any:
            raise AssertionError("nobody awaits it")

        pool = Async()
        gone = pool.take_loop("gone")
        gone.stop()
        gone.thread.join(20.0)
        monkeypatch.setattr(pool, "take_loop", lambda name: gone)
        with pytest.raises(pn.TermError, match="term: raised RuntimeError: Event loop is closed"):
            pool.start(thread_task(never)).result()

    def test_no_loop_starts_once_it_is_closed(self) -> None:
        pool = Async()
        pool.close()
        with pytest.raises(RuntimeError, match="the executor is closed"):
            pool.take_loop("term")

    def test_a_loop_whose_thread_cannot_start_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[asyncio.AbstractEventLoop] = []
        new = asyncio.new_event_loop
        pool = Async()
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "new_event_loop", lambda: made.append(new()) or made[-1])
            no_threads(patch, "penalties-loop")
            with pytest.raises(pn.TermError, match="term: raised RuntimeError: can't start new thread"):
                pool.start(thread_task(asyncio.sleep)).result()
        pool.close()
        assert made[0].is_closed()

    def test_a_term_keeps_its_loop_and_others_have_theirs(self, executor: pn.Executor) -> None:
        async def which(x: Any) -> Any:
            return x.sum(), {"loop": id(asyncio.get_running_loop())}

        pipeline = pn.Pipeline([pn.Term(which, name="one"), pn.Term(which, name="other")])
        first, second = (executor.run(pipeline, {"x": torch.ones(1)}).metrics() for _ in range(2))
        assert first["one/loop"] == second["one/loop"]
        assert first["one/loop"] != first["other/loop"]

    def test_the_loop_that_was_not_used_for_longest_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(asynchronous, "_MOST", 2)
        pool = Async()
        loops = [pool.take_loop(name) for name in "abc"]
        assert all(loop.thread.is_alive() for loop in loops), "they are in use"
        for loop in loops:
            pool.leave_loop(loop)
        pool.take_loop("d")
        loops[0].thread.join(20.0)
        assert [loop.thread.is_alive() for loop in loops] == [False, True, True]
        pool.close()

    def test_a_loop_that_was_blocked_ends_when_it_is_free(self) -> None:
        done = threading.Event()

        async def blocks(x: Any) -> Any:
            done.wait(20.0)

        pool, before = Async(), set(threading.enumerate())
        running = pool.start(thread_task(blocks, timeout=0.05))
        with pytest.raises(pn.TermTimeoutError, match="could not be cancelled"):
            running.result()
        running.cancel()
        assert pool.abandoned == 1
        (loop,) = (one for one in set(threading.enumerate()) - before if one.name == "penalties-loop")
        done.set()
        settled(pool)
        loop.join(20.0)
        assert not loop.is_alive()
        pool.close()

    def test_a_future_that_is_late_is_cancelled(self) -> None:
        promised: Future[Any] = Future()
        pool = Async()
        running = pool.start(thread_task(lambda x: promised, timeout=0.05))
        with pytest.raises(pn.TermTimeoutError, match="and was cancelled"):
            running.result()
        assert promised.cancelled()
        assert pool.abandoned == 0
        pool.close()

    def test_cancelling_a_term_that_returned_a_future(self) -> None:
        promised, returned = Future[Any](), threading.Event()

        def promises(x: Any) -> Any:
            returned.set()
            return promised

        pool = Async()
        running = pool.start(thread_task(promises))
        assert returned.wait(20.0)
        running.cancel()
        with pytest.raises(pn.TermError, match="term: was cancelled"):
            running.result()
        settled(pool)
        assert promised.cancelled()
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
