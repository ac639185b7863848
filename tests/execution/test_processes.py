"""The pool of workers from the caller's side, where it goes wrong in ways that a term cannot bring about."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.execution import crew as crew_module
from penalties.execution import workers
from penalties.execution.ambient import Modes
from penalties.execution.crew import Crew, Promise
from penalties.execution.pools import processes
from penalties.execution.pools.processes import Processes
from penalties.execution.task import Task
from penalties.execution.workers import WorkerContext, WorkerProcess


@pytest.fixture
def place() -> Iterator[Processes]:
    place = Processes(1)
    yield place
    place.close()


def task(fn: Any, timeout: float = 30.0, **arguments: Any) -> Task:
    return Task(
        pn.Term(fn, name="term", inputs="x", runs="process", **arguments),
        {"x": np.ones(2)},
        (),
        None,
        None,
        timeout,
        Modes(),
    )


def total(x: Any) -> Any:
    return x.sum()


def begun(place: Processes, running: Any) -> None:
    """Wait until a worker is at it."""
    while not place.board()[running._slot, 0]:
        time.sleep(0.01)


def nap(x: Any) -> Any:
    time.sleep(30.0)
    return x.sum()


def test_status_zero_is_a_loss_too(place: Processes) -> None:
    def leave(x: Any) -> Any:
        os._exit(0)

    with pytest.raises(pn.WorkerLostError, match=r"term: its process died \(exit status 0\)"):
        place.start(task(leave)).result()
    assert float(place.start(task(total)).result().value) == 2.0


def test_what_cannot_be_read_here_is_named(place: Processes) -> None:
    def odd(x: Any) -> Any:
        class Odd:
            def __reduce__(self):
                return int, ("no number",)

        return pn.Evaluation(x.sum(), state=Odd())

    with pytest.raises(pn.TermError, match="term: what it returned cannot be read here: ValueError"):
        place.start(task(odd)).result()


def test_a_crew_that_broke_is_replaced(place: Processes) -> None:
    assert float(place.start(task(total)).result().value) == 2.0
    place._crew.stop()
    place._crew.stop()
    assert float(place.start(task(total)).result().value) == 2.0


def test_a_crew_that_breaks_again_and_again_is_an_error(place: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Crew, request: Any) -> Any:
        raise RuntimeError("it broke")

    monkeypatch.setattr(Crew, "schedule", broken)
    with pytest.raises(pn.WorkerLostError, match="term: no worker can be started: it broke"):
        place.start(task(total))


def test_a_task_that_had_not_begun_runs_in_the_next_crew(place: Processes) -> None:
    first = place.start(task(nap))
    begun(place, first)
    waiting = place.start(task(total))
    place.replace(first._crew)
    place.replace(first._crew)
    assert float(waiting.result().value) == 2.0
    with pytest.raises(pn.WorkerLostError, match="term: its workers broke; idempotent=True lets it run again"):
        first.result()


def test_a_pool_that_breaks_ends_its_crew(place: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    running = place.start(task(nap, idempotent=True))
    begun(place, running)
    broken: Future[Any] = Future()
    broken.set_exception(BrokenProcessPool("All workers expired"))
    crew = place._crew
    crew._over(broken)
    crew._over(broken)
    with pytest.raises(BrokenProcessPool):
        running._promise.result(1.0)
    with pytest.raises(RuntimeError, match="All workers expired"):
        crew.schedule(None)
    ended: Future[Any] = Future()
    ended.cancel()
    crew._over(ended)
    running.cancel()


def test_a_pool_that_takes_no_task_ends_its_crew(place: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert float(place.start(task(total)).result().value) == 2.0

    def refuse(*args: Any) -> Any:
        raise RuntimeError("The Pool is not active")

    crew = place._crew
    monkeypatch.setattr(crew._pool, "schedule", refuse)
    crew._open()
    assert float(place.start(task(total)).result().value) == 2.0
    assert place._crew is not crew


def test_a_term_that_does_not_load_in_time_is_late(place: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def __reduce__(self) -> Any:
            return time.sleep, (20.0,)

        def __call__(self, x: Any) -> Any:
            return x.sum()

    assert float(place.start(task(total)).result().value) == 2.0
    monkeypatch.setattr(processes, "_LOADING", 0.2)
    running = place.start(task(Slow(), timeout=0.1))
    with pytest.raises(pn.TermTimeoutError, match=r"term: was not loaded within 0\.2 s; its process was killed"):
        running.result()


def test_cancelling_before_and_after(place: Processes) -> None:
    done = place.start(task(total))
    done.result()
    done.cancel()
    running = place.start(task(nap))
    begun(place, running)
    waiting = place.start(task(total))
    waiting.cancel()
    running.cancel()
    for one in (running, waiting):
        with pytest.raises(pn.TermError, match="term: was cancelled"):
            one.result()
    assert float(place.start(task(total)).result().value) == 2.0


def test_two_threads_wait_for_one_worker_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(x: Any) -> Any:
        time.sleep(0.3)
        return x.sum()

    place = Processes(2)
    found: list[float] = []
    running = [place.start(task(slow)) for _ in range(4)]
    threads = [threading.Thread(target=lambda one=one: found.append(float(one.result().value))) for one in running]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    place.close()
    assert found == [2.0] * 4


def test_a_worker_that_dies_as_it_is_sent_something_is_replaced(place: Processes) -> None:
    assert float(place.start(task(total)).result().value) == 2.0
    crew = place._crew
    (seat,) = crew._idle
    os.kill(seat.process.pid, signal.SIGKILL)
    seat.process.join()
    running = place.start(task(total))
    assert float(running.result().value) == 2.0
    crew._lose(seat)
    assert seat not in crew._idle


def test_a_worker_that_dies_with_its_crew_is_not_replaced(place: Processes) -> None:
    assert float(place.start(task(total)).result().value) == 2.0
    crew = place._crew
    (seat,) = crew._idle
    crew._end(RuntimeError("the end"))
    os.kill(seat.process.pid, signal.SIGKILL)
    crew._lose(seat)
    assert not crew._seats
    assert float(place.start(task(total)).result().value) == 2.0


def test_a_worker_that_dies_idle_is_replaced(place: Processes) -> None:
    assert float(place.start(task(total)).result().value) == 2.0
    crew = place._crew
    (seat,) = crew._idle
    os.kill(seat.process.pid, signal.SIGKILL)
    seat.process.join()
    crew._read(1.0)
    assert seat not in crew._idle
    assert float(place.start(task(total)).result().value) == 2.0


def test_workers_that_all_died_idle_lose_no_term() -> None:
    place = Processes(2)
    first, second = place.start(task(total)), place.start(task(total))
    first.result(), second.result()
    seats = list(place._crew._idle)
    for seat in seats:
        os.kill(seat.process.pid, signal.SIGKILL)
    for seat in seats:
        seat.process.join()
    assert float(place.start(task(total)).result().value) == 2.0
    place.close()


def test_what_a_term_forked_does_not_hide_the_end_of_its_worker(place: Processes) -> None:
    def forks(x: Any) -> Any:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if os.fork() == 0:
                time.sleep(60.0)
                os._exit(0)
        os._exit(3)

    with pytest.raises(pn.WorkerLostError, match=r"term: its process died \(exit status 3\)"):
        place.start(task(forks, timeout=20.0)).result()


def test_terms_beyond_what_a_worker_keeps_are_sent_again(place: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "LOADED", 1)
    terms = [task(total), task(lambda x: 2 * x.sum())]
    assert float(place.start(terms[0]).result().value) == 2.0
    assert float(place.start(terms[1]).result().value) == 4.0
    (seat,) = place._crew._idle
    assert len(seat.terms) == 1


def test_a_term_that_a_worker_let_go_of_is_sent_again(place: Processes) -> None:
    first, other = task(total), task(lambda x: 2 * x.sum())
    place.start(first).result()
    (seat,) = place._crew._idle
    key, _ = place._bodies.of(other.term)
    seat.terms[key] = None
    assert float(place.start(other).result().value) == 4.0
    assert key in seat.terms


def test_a_reply_that_crosses_its_cancelling_gives_the_worker_nothing_more(place: Processes) -> None:
    running = place.start(task(total))
    while running._promise.seat is None:
        time.sleep(0.01)
    crew, seat = place._crew, running._promise.seat
    while not seat.line.poll():
        time.sleep(0.01)
    seat.doomed = True
    crew._read(1.0)
    assert seat not in crew._idle
    running.cancel()
    assert seat.line.closed
    # Its number, where it was seen to be ready, is nobody's now.
    crew._seats[seat.descriptor] = seat
    crew._poll.register(seat.descriptor)
    crew._read(0.0)
    del crew._seats[seat.descriptor]
    crew._poll.unregister(seat.descriptor)
    assert float(place.start(task(total)).result().value) == 2.0


def test_a_reply_that_nobody_waits_for_frees_its_worker(place: Processes) -> None:
    running = place.start(task(total))
    while running._promise.seat is None:
        time.sleep(0.01)
    seat = running._promise.seat
    while not seat.line.poll():
        time.sleep(0.01)
    seat.promise = None
    place._crew._read(1.0)
    assert seat in place._crew._idle
    running._promise.finish(None, RuntimeError())


def test_news_of_a_seat_that_is_gone_are_passed_over(place: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert float(place.start(task(total)).result().value) == 2.0
    crew = place._crew
    (descriptor,) = crew._seats

    class Poll:
        def poll(self, timeout: float) -> Any:
            return [(-1, 1), (descriptor, 1)]

    monkeypatch.setattr(crew, "_poll", Poll())
    crew._read(0.0)
    monkeypatch.undo()
    assert float(place.start(task(total)).result().value) == 2.0


def test_more_tasks_than_there_is_room_for(place: Processes) -> None:
    place.take_slot("first")
    place._free.clear()
    with pytest.raises(pn.TermError, match="term: more than 1024 tasks at once"):
        place.start(task(total))


def test_nothing_starts_once_it_is_closed() -> None:
    place = Processes(1)
    place.close()
    with pytest.raises(pn.TermError, match="term: the executor was closed"):
        place.start(task(total))


def test_a_fork_of_the_caller_leaves_the_workers_alone(tmp_path: Path) -> None:
    script = tmp_path / "fork.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys, warnings
            import numpy as np
            import penalties as pn

            warnings.simplefilter("ignore")
            pipeline = pn.Pipeline([pn.Term(lambda x: x.sum(), name="sum", inputs="x", runs="process")])
            executor = pn.Executor(max_workers=1)
            print(float(executor.run(pipeline, {"x": np.ones(2)}).total), flush=True)
            pid = os.fork()
            if pid == 0:
                try:
                    executor.run(pipeline, {"x": np.ones(2)})
                except RuntimeError as error:
                    print(error, flush=True)
                sys.exit(0)
            os.waitpid(pid, 0)
            print(float(executor.run(pipeline, {"x": np.ones(3)}).total), flush=True)
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "2.0",
        "this Executor belongs to the process that made it; make a new one in this fork",
        "3.0",
    ]
    assert not done.stderr


def test_children_of_others_stay_children_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = WorkerProcess(), object()
    children: set[Any] = {ours, theirs}
    monkeypatch.setattr(workers.process, "_children", children)
    workers._disown()
    assert children == {theirs}


def test_processes_say_how_they_are_started() -> None:
    context = WorkerContext(lambda process, line: None)
    assert context.get_start_method() == "forkserver"
    assert context.get_context() is context
    context.kill()
    context.stop()


def test_closed_by_another_thread(place: Processes) -> None:
    running = place.start(task(nap))
    place.closed = True
    with pytest.raises(pn.TermError, match="term: the executor was closed before it was done"):
        running.send()
    with pytest.raises(pn.TermError, match="term: the executor was closed before it was done"):
        running._patience()
    place.closed = False


def test_a_reply_on_its_way_is_waited_for(place: Processes) -> None:
    running = place.start(task(total))
    running.result()
    place.board()[running._slot] = 1.0, os.getpid(), 1.0
    assert running._patience() == processes._LOOK


def test_too_little_shared_memory_is_an_error(place: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    assert float(place.start(task(total)).result().value) == 2.0
    monkeypatch.setattr(os, "posix_fallocate", full)
    large = Task(task(total).term, {"x": np.ones(100_000)}, (), None, None, 30.0, None)
    with pytest.raises(pn.TermError, match="term: there is no room for 800000 bytes of shared memory.*--shm-size"):
        place.start(large)
    assert len(place.blocks) == 1
    monkeypatch.delattr(os, "posix_fallocate")
    assert float(place.start(large).result().value) == 100_000.0


def test_a_term_that_hangs_in_c_is_killed_as_fast(place: Processes) -> None:
    def hangs(x: Any) -> Any:
        return sum(range(10**12)) + x.sum()

    assert float(place.start(task(total)).result().value) == 2.0
    running = place.start(task(hangs, timeout=0.3))
    with pytest.raises(pn.TermTimeoutError):
        running.result()


def test_what_comes_second_does_not_break_what_was_kept() -> None:
    """A worker may die, or a task be cancelled, between its reply and the reading of it."""
    unused: Any = None
    promise = Promise(unused, unused)
    reply: Any = object()
    promise.finish(reply)
    promise.finish(None, RuntimeError("too late"))
    assert promise.result(1.0) is reply
