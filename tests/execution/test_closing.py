"""Closing an executor."""

import os
import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.execution.executor import _close_all

from .terms import probe, thread_task


class TestClosing:
    @pytest.mark.slow
    def test_while_terms_run_ends_them(self) -> None:
        executor = pn.Executor(max_workers=1)
        probe(executor, "process")
        found: Future[Any] = Future()

        def run() -> None:
            try:
                executor.run(
                    pn.Pipeline([pn.Term(lambda x: time.sleep(60), name="long", runs="process")]), {"x": np.ones(1)}
                )
            except BaseException as error:
                found.set_exception(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.5)
        executor.close()
        with pytest.raises(pn.TermError, match="long: the executor was closed"):
            found.result(10.0)
        thread.join()

    def test_a_closed_executor_has_no_pools(self) -> None:
        executor = pn.Executor()
        executor.close()
        with pytest.raises(RuntimeError, match="this Executor is closed"):
            executor.pool(pn.Term("l1", runs="thread"))

    def test_with_threads_that_have_not_begun(self) -> None:
        done = threading.Event()

        def wait(x: Any) -> Any:
            done.wait(20.0)
            return x.sum()

        executor = pn.Executor(max_workers=1)
        pool = executor.pool(pn.Term("l1", runs="thread"))
        first, second = (
            pool.start(thread_task(wait, timeout=60.0 if name == "first" else 0.05)) for name in ("first", "second")
        )
        executor.close()
        with pytest.raises(pn.TermError, match="term: the executor was closed before it began"):
            second.result()
        done.set()
        assert float(first.result().value) == 1.0
        with pytest.raises(pn.TermError, match="term: the executor is closed"):
            pool.start(thread_task(wait))


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
