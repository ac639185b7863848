import asyncio
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, Future

import pytest

from penalties.training.futures import TrainingFuture


def test_result_waits_for_another_thread() -> None:
    source: Future[int] = Future()
    threading.Timer(0.02, source.set_result, [5]).start()
    future = TrainingFuture(source)
    assert not future.done()
    assert future.result(timeout=5) == 5
    assert future.done()
    assert future.future() is source


def test_result_of_a_resolved_future() -> None:
    assert TrainingFuture.of("here").result(timeout=0) == "here"


def test_result_times_out() -> None:
    with pytest.raises(TimeoutError):
        TrainingFuture(Future()).result(timeout=0.01)


def test_an_error_is_raised_by_the_result() -> None:
    source: Future[int] = Future()
    source.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        TrainingFuture(source).result(timeout=1)


def test_it_can_be_awaited_more_than_once() -> None:
    async def main() -> list[int]:
        source: Future[int] = Future()
        future = TrainingFuture(source)
        threading.Timer(0.02, source.set_result, [7]).start()
        return [await future, await future.result_async(timeout=1), *await asyncio.gather(future, future)]

    assert asyncio.run(main()) == [7, 7, 7, 7]


def test_an_asynchronous_timeout_does_not_cancel_the_work() -> None:
    async def main() -> int:
        source: Future[int] = Future()
        future = TrainingFuture(source)
        with pytest.raises(TimeoutError):
            await future.result_async(timeout=0.01)
        assert not source.cancelled()
        source.set_result(1)
        return await future

    assert asyncio.run(main()) == 1


def test_cancelling_a_wait_cancels_nothing_else() -> None:
    async def main() -> int:
        source: Future[int] = Future()
        future = TrainingFuture(source)
        waiter = asyncio.ensure_future(future.result_async())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        source.set_result(2)
        return await future

    assert asyncio.run(main()) == 2


def test_a_result_after_the_loop_is_closed_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    source: Future[int] = Future()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await TrainingFuture(source).result_async(timeout=0.01)

    asyncio.run(main())
    source.set_result(1)
    assert caplog.records == []


def test_an_error_is_raised_where_it_is_awaited() -> None:
    async def main() -> None:
        source: Future[int] = Future()
        threading.Timer(0.02, source.set_exception, [ValueError("no")]).start()
        with pytest.raises(ValueError, match="no"):
            await TrainingFuture(source)

    asyncio.run(main())


def test_then_maps_before_and_after_the_result_is_there() -> None:
    source: Future[int] = Future()
    early = TrainingFuture(source).then(lambda x: x + 1).then(str)
    source.set_result(1)
    assert early.result(timeout=1) == "2"
    assert TrainingFuture(source).then(lambda x: x + 2).result(timeout=1) == 3


def test_then_runs_its_function_once() -> None:
    calls: list[int] = []
    future = TrainingFuture.of(1).then(calls.append)
    future.result(timeout=1)
    future.result(timeout=1)
    assert calls == [1]


@pytest.mark.parametrize("raised", ["source", "function"])
def test_then_passes_on_what_is_raised(raised: str) -> None:
    source: Future[int] = Future()
    future = TrainingFuture(source).then(lambda x: 1 // x)
    if raised == "source":
        source.set_exception(ZeroDivisionError())
    else:
        source.set_result(0)
    with pytest.raises(ZeroDivisionError):
        future.result(timeout=1)


def test_then_passes_on_a_cancellation() -> None:
    source: Future[int] = Future()
    future = TrainingFuture(source).then(lambda x: x)
    source.cancel()
    with pytest.raises(CancelledError):
        future.result(timeout=1)


def test_a_thread_that_still_lets_go_of_its_work_is_waited_for_at_exit() -> None:
    """Freeing a graph while the interpreter ends would abort the process."""
    code = """
import time
from penalties.training.futures import in_thread

class Graph:
    def __del__(self):
        time.sleep(0.3)
        print("freed", flush=True)

def work(graph):
    time.sleep(0.2)
    return 42

print(in_thread(lambda graph=Graph(): work(graph)).result(), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["42", "freed"], "")


def test_a_thread_that_still_works_does_not_hold_up_the_exit() -> None:
    code = "import time\nfrom penalties.training.futures import in_thread\nin_thread(lambda: time.sleep(600))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
