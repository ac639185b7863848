import os
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError
from typing import Any

import pytest

from penalties.training.local.worker import Worker

WAIT = 10.0


def test_operations_are_done_in_order_by_one_daemon_thread() -> None:
    done: list[int] = []
    with Worker("test") as worker:
        futures = [worker.submit(lambda i=i: (done.append(i), threading.current_thread())[1]) for i in range(50)]
        threads = {future.result(WAIT) for future in futures}
    assert done == list(range(50))
    (thread,) = threads
    assert thread.daemon
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_an_error_affects_only_its_own_future() -> None:
    with Worker("test") as worker:
        failed = worker.submit(lambda: 1 // 0)
        fine = worker.submit(lambda: 1)
        with pytest.raises(ZeroDivisionError):
            failed.result(WAIT)
        assert fine.result(WAIT) == 1


def test_the_thread_does_not_wait_for_itself() -> None:
    with Worker("test") as worker:
        nested = worker.submit(lambda: 1).then(lambda x: worker.submit(lambda: x + 1).result(WAIT))
        inside = worker.submit(lambda: worker.submit(lambda: 3).result(WAIT))
        assert nested.result(WAIT) == 2
        assert inside.result(WAIT) == 3


def test_closing_finishes_what_was_submitted_and_takes_no_more() -> None:
    worker = Worker("test")
    slow = worker.submit(lambda: time.sleep(0.05))
    last = worker.submit(lambda: 2)
    worker.close()
    worker.close()
    assert slow.done()
    assert last.result(0) == 2
    with pytest.raises(RuntimeError, match="this test is closed"):
        worker.submit(lambda: 1)


def test_closing_from_inside_does_not_wait_for_itself() -> None:
    worker = Worker("test")
    worker.submit(worker.close).result(WAIT)
    worker.close()


def test_an_unused_worker_can_be_closed() -> None:
    Worker("test").close()


def test_a_fork_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with Worker("test") as worker:
        worker.submit(lambda: 1).result(WAIT)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(RuntimeError, match="belongs to the process that created it"):
            worker.submit(lambda: 1)


def test_a_cancelled_operation_is_not_done() -> None:
    done: list[int] = []
    with Worker("test") as worker:
        gate = threading.Event()
        worker.submit(lambda: gate.wait(WAIT))
        cancelled = worker.submit(lambda: done.append(1))
        assert cancelled.future().cancel()
        gate.set()
    assert done == []


def test_a_collected_worker_ends_its_thread_and_cancels_queued_operations() -> None:
    worker = Worker("test")
    thread = worker.submit(threading.current_thread).result(WAIT)
    gate = threading.Event()
    entered = threading.Event()
    worker.submit(lambda: (entered.set(), gate.wait(WAIT)))
    waiting = worker.submit(lambda: 1)
    entered.wait(WAIT)
    threading.Timer(0.05, gate.set).start()
    gone = weakref.ref(worker)
    del worker
    assert gone() is None
    thread.join(WAIT)
    assert not thread.is_alive()
    with pytest.raises(CancelledError):
        waiting.result(0)


def test_a_worker_collected_by_its_own_thread_ends() -> None:
    worker: Any = Worker("test")
    holder = [worker]
    gate = threading.Event()
    thread = worker.submit(threading.current_thread).result(WAIT)
    worker.submit(lambda: (gate.wait(WAIT), holder.clear()))
    del worker
    gate.set()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_the_thread_keeps_no_results() -> None:
    class Large:
        pass

    with Worker("test") as worker:
        future: Any = worker.submit(Large)
        gone = weakref.ref(future.result(WAIT))
        del future
        worker.submit(lambda: None).result(WAIT)
        assert gone() is None


def test_a_program_ends_with_work_under_way() -> None:
    program = (
        "import time\n"
        "from penalties.training.local.worker import Worker\n"
        "worker = Worker('test')\n"
        "worker.submit(lambda: time.sleep(0.2))\n"
        "waiting = [worker.submit(lambda: time.sleep(60)) for _ in range(3)]\n"
        "time.sleep(0.05)\n"
        "print('end')\n"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
    assert time.monotonic() - start < 30
