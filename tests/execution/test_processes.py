"""The pool of workers from the caller's side, where it goes wrong in ways that a term cannot bring about."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.execution import processes, workers
from penalties.execution.ambient import Modes
from penalties.execution.processes import Processes
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


def test_a_pool_that_broke_is_replaced(place: Processes) -> None:
    assert float(place.start(task(total)).result().value) == 2.0
    place._pool.stop()
    assert float(place.start(task(total)).result().value) == 2.0


def test_a_pool_that_breaks_again_and_again_is_an_error(place: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("Unexpected error within the Pool")

        def stop(self) -> None:
            pass

        join = stop

    def new_pool() -> Any:
        pool = Broken()
        place._contexts[id(pool)] = WorkerContext()
        return pool

    monkeypatch.setattr(place, "_new_pool", new_pool)
    with pytest.raises(pn.WorkerLostError, match="term: no worker can be started"):
        place.start(task(total))


def test_a_task_that_had_not_begun_runs_in_the_next_pool(place: Processes) -> None:
    first = place.start(task(nap))
    while not place.board()[first._slot, 0]:
        time.sleep(0.01)
    waiting = place.start(task(total))
    place.replace(first._pool)
    place.replace(first._pool)
    assert float(waiting.result().value) == 2.0
    with pytest.raises(pn.WorkerLostError, match="term: its pool of workers broke; idempotent=True lets it run again"):
        first.result()


def test_workers_that_wait_for_a_lock_of_a_dead_one_are_replaced(
    place: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_LOCKED", 0.1)
    running = place.start(task(nap))
    while not place.board()[running._slot, 0]:
        time.sleep(0.01)
    context = place._contexts[id(place._pool)]
    assert not context.stuck()
    held = threading.Thread(target=context._locks[0].acquire)
    held.start()
    held.join()
    pool = place._pool
    os.kill(int(place.board()[running._slot, 1]), signal.SIGKILL)
    with pytest.raises(pn.WorkerLostError, match="term: its p"):
        running.result()
    place.check(pool)
    assert float(place.start(task(total)).result().value) == 2.0


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


def test_a_worker_that_will_not_die_costs_its_pool(place: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_DYING", 0.05)
    running = place.start(task(nap, timeout=0.2))
    pool = running._pool
    monkeypatch.setattr(running._future, "cancel", lambda: False)
    with pytest.raises(pn.TermTimeoutError, match=r"took more than 0\.2 s"):
        running.result()
    assert not place.current(pool)


def test_cancelling_before_and_after(place: Processes) -> None:
    done = place.start(task(total))
    done.result()
    done.cancel()
    running, waiting = place.start(task(nap)), place.start(task(total))
    waiting.cancel()
    running.cancel()
    with pytest.raises(pn.TermError, match="term: was cancelled"):
        running.result()
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


def test_where_there_is_no_server_workers_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    context = WorkerContext()
    assert context.get_start_method() == "spawn"
    assert isinstance(context.Process(target=print), workers.context.SpawnProcess)
    assert context.get_context() is context
    context.stop()


def test_processes_say_how_they_are_started() -> None:
    context = WorkerContext()
    assert context.get_start_method() == "forkserver"
    context.kill()
    context.stop()


def test_closed_by_another_thread(place: Processes) -> None:
    running = place.start(task(nap))
    place.closed = True
    with pytest.raises(pn.TermError, match="term: the executor was closed before it was done"):
        running.send(with_body=True)
    with pytest.raises(pn.TermError, match="term: the executor was closed before it was done"):
        running._patience()
    place.closed = False


def test_what_a_pool_says_of_a_process_that_is_gone(place: Processes) -> None:
    class Expired(OSError):
        exitcode = -11

    class Told:
        def result(self, timeout: float) -> Any:
            raise Expired

    running = place.start(task(total))
    running.result()
    running._future = Told()
    place.board()[running._slot] = 1.0
    with pytest.raises(pn.WorkerLostError, match=r"term: its process died \(killed by signal 11\)"):
        running._died(processes._Gone())
    running._pool = object()
    place.board()[running._slot] = 0.0
    with pytest.raises(processes._Gone):
        running._patience()


def test_a_reply_on_its_way_is_waited_for(place: Processes) -> None:
    running = place.start(task(total))
    running.result()
    place.board()[running._slot] = 1.0, os.getpid(), 1.0
    assert running._patience() == processes._LOOK


def test_a_pool_that_says_that_it_broke_is_replaced(place: Processes) -> None:
    running = place.start(task(total, idempotent=True))
    running.result()
    pool = running._pool
    assert running._lost("its pool of workers broke", processes.BrokenProcessPool()) is None
    assert not place.current(pool)
    assert float(running._reply().data is not None)


def test_cancelling_what_is_done(place: Processes) -> None:
    running = place.start(task(total))
    running._future.result(30.0)
    running.cancel()
    assert float(place.start(task(total)).result().value) == 2.0


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
