"""The pool of worker processes: what it survives, what it tells, and what it leaves alone."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.execution import remote
from penalties.execution.pools import processes
from penalties.execution.pools.processes import Processes
from penalties.execution.task import Task


@pytest.fixture(scope="module")
def pool() -> Iterator[Processes]:
    """One worker, for all of these: each leaves it as it was."""
    pool = Processes(1)
    yield pool
    pool.close()


def task(fn: Any, timeout: float = 30.0, x: Any = None, **arguments: Any) -> Task:
    term = pn.Term(fn, name="term", inputs="x", runs="process", **arguments)
    return Task(term, {"x": np.ones(2) if x is None else x}, (), None, None, timeout, None)


def total(x: Any) -> Any:
    return x.sum()


def napping(began: Path) -> Callable[..., Any]:
    """A term that takes long, and says when it has begun, and by whom its process was started."""

    def nap(x: Any) -> Any:
        broker = multiprocessing.parent_process()
        began.write_text(f"{broker.pid if broker else 0}\n")
        time.sleep(30.0)
        return x.sum()

    return nap


def who(x: Any) -> Any:
    return x.sum(), {"pid": os.getpid()}


def value(running: Any) -> float:
    return float(running.result().value)


def until(happened: Callable[[], Any]) -> None:
    end = time.monotonic() + 60.0
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


class EndsWhenMade(Exception):
    here: int = 0

    def __init__(self) -> None:
        if EndsWhenMade.here == os.getpid():
            os._exit(1)

    def __reduce__(self) -> Any:
        return EndsWhenMade, ()


def raises_what_ends(x: Any) -> Any:
    raise EndsWhenMade


class TestLosses:
    @pytest.mark.slow
    def test_exit_status_zero_is_a_loss_too(self, pool: Processes) -> None:
        with pytest.raises(pn.WorkerLostError, match="term: its process died"):
            pool.start(task(lambda x: os._exit(0))).result()
        assert value(pool.start(task(total))) == 2.0

    def test_an_idle_worker_that_dies_is_replaced(self, pool: Processes) -> None:
        pid = int(pool.start(task(who)).result().metrics["pid"])
        os.kill(pid, signal.SIGKILL)
        assert value(pool.start(task(total))) == 2.0

    def test_what_a_term_forked_does_not_hide_the_end_of_its_worker(self, pool: Processes) -> None:
        def forks(x: Any) -> Any:
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if os.fork() == 0:
                    time.sleep(60.0)
                    os._exit(0)
            os._exit(3)

        with pytest.raises(pn.WorkerLostError, match=r"term: its process died \(exit status 3\)"):
            pool.start(task(forks, timeout=20.0)).result()

    @pytest.mark.slow
    def test_a_broker_that_dies_is_replaced(self, pool: Processes, tmp_path: Path) -> None:
        began = tmp_path / "began"
        running, waiting = pool.start(task(napping(began))), pool.start(task(total))
        until(lambda: began.exists() and began.read_text().endswith("\n"))
        os.kill(int(began.read_text()), signal.SIGKILL)
        assert value(waiting) == 2.0
        with pytest.raises(pn.WorkerLostError, match="term: the worker pool broke; idempotent=True"):
            running.result()

    def test_a_broker_that_cannot_start_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        pool = Processes(1)
        with pytest.raises(pn.WorkerLostError, match="term: no worker could be started: .*exit status"):
            pool.start(task(total)).result()
        pool.close()


class TestTimes:
    def test_a_term_that_hangs_in_c_is_killed(self, pool: Processes) -> None:
        with pytest.raises(pn.TermTimeoutError, match=r"term: took more than 0\.3 s; its process was killed"):
            pool.start(task(lambda x: sum(range(10**12)), timeout=0.3)).result()
        assert value(pool.start(task(total))) == 2.0

    def test_a_function_that_does_not_load_in_time_is_late(
        self, pool: Processes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Slow:
            def __reduce__(self) -> Any:
                return time.sleep, (20.0,)

            def __call__(self, x: Any) -> Any:
                return x.sum()

        assert value(pool.start(task(total))) == 2.0
        monkeypatch.setattr(processes, "LOADING", 0.2)
        with pytest.raises(pn.TermTimeoutError, match=r"term: was not loaded within 0\.2 s"):
            pool.start(task(Slow(), timeout=0.1)).result()

    def test_cancelling_before_while_and_after(self, pool: Processes, tmp_path: Path) -> None:
        done = pool.start(task(total))
        done.result()
        done.cancel()
        running = pool.start(task(napping(tmp_path / "began")))
        until((tmp_path / "began").exists)
        waiting = pool.start(task(total))
        waiting.cancel()
        running.cancel()
        for one in (running, waiting):
            with pytest.raises(pn.TermError, match="term: was cancelled"):
                one.result()
        assert value(pool.start(task(total))) == 2.0

    def test_several_threads_wait_at_once(self, pool: Processes) -> None:
        found: list[float] = []
        running = [pool.start(task(total, x=np.full(3, float(i)))) for i in range(4)]
        threads = [threading.Thread(target=lambda one=one: found.append(value(one))) for one in running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [0.0, 3.0, 6.0, 9.0]


class TestTravelling:
    def test_a_result_larger_than_its_slot(self, pool: Processes) -> None:
        def large(x: Any) -> Any:
            return pn.Evaluation(x.sum(), state={"array": np.ones(200_000), "bytes": b"x" * 1_000_000})

        state = pool.start(task(large)).result().state
        assert state["array"].sum() == 200_000
        assert len(state["bytes"]) == 1_000_000

    def test_a_result_that_cannot_be_pickled_is_an_error(self, pool: Processes) -> None:
        with pytest.raises(pn.TermError, match="term: its result cannot be sent to the caller: TypeError"):
            pool.start(task(lambda x: pn.Evaluation(x.sum(), state=threading.Lock()))).result()

    def test_a_result_that_is_not_data_is_an_error(self, pool: Processes) -> None:
        class Ends:
            def __reduce__(self) -> Any:
                return os._exit, (1,)

        with pytest.raises(pn.TermError, match="term: its result cannot be sent to the caller: TypeError: it holds an"):
            pool.start(task(lambda x: pn.Evaluation(x.sum(), state=[Ends()]))).result()

    def test_what_a_worker_sends_is_not_run_here(self, pool: Processes) -> None:
        def hostile(x: Any) -> Any:
            import pickle

            from penalties.execution import portable, remote

            pack = remote.dumps_data

            class Ends:
                def __reduce__(self) -> Any:
                    return os._exit, (1,)

            def once(value: Any) -> Any:
                remote.dumps_data = pack
                return portable.Packed(pickle.dumps(Ends()), [], frozenset())

            remote.dumps_data = once
            return x.sum()

        with pytest.raises(pn.TermError, match="term: its result cannot be read here: UnpicklingError: it names"):
            pool.start(task(hostile)).result()
        assert value(pool.start(task(total))) == 2.0

    def test_what_a_term_raised_is_not_made_again_by_its_own_code(
        self, pool: Processes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(EndsWhenMade, "here", os.getpid())
        with pytest.raises(pn.TermError, match="raised EndsWhenMade") as caught:
            pool.start(task(raises_what_ends)).result()
        assert isinstance(caught.value.__cause__, EndsWhenMade)

    def test_a_function_travels_once(self, pool: Processes, tmp_path: Path) -> None:
        loads = tmp_path / "loads"
        loads.touch()

        class Counted:
            def __reduce__(self) -> Any:
                return _noted, (str(loads), total)

            def __call__(self, x: Any) -> Any:
                raise AssertionError("made again by the worker")

        once = task(Counted())
        assert [value(pool.start(once)) for _ in range(3)] == [2.0] * 3
        assert loads.read_text() == "loaded\n"

    def test_a_function_that_a_worker_has_dropped_is_sent_again(self, pool: Processes) -> None:
        def drops(x: Any) -> Any:
            remote._terms.clear()
            return x.sum()

        one = task(lambda x: 2 * x.sum())
        assert [value(pool.start(each)) for each in (one, task(drops), one)] == [4.0, 2.0, 4.0]

    def test_too_little_shared_memory_is_an_error(self, pool: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(descriptor: int, offset: int, size: int) -> None:
            raise OSError(28, "No space left on device")

        large = task(total, x=np.ones(10_000_000))
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            with pytest.raises(pn.TermError, match="term: there is no room for 8.* bytes of shared memory.*--shm-size"):
                pool.start(large).result()
        monkeypatch.delattr(os, "posix_fallocate")
        assert value(pool.start(large)) == 10_000_000.0


def _noted(path: str, function: Any) -> Any:
    with open(path, "a") as file:
        file.write("loaded\n")
    return function


def test_nothing_starts_once_it_is_closed() -> None:
    pool = Processes(1)
    pool.close()
    with pytest.raises(pn.TermError, match="term: the executor is closed"):
        pool.start(task(total))


class TestPrograms:
    """Each in a process of its own, under the interpreter's strictest warnings."""

    def run(self, tmp_path: Path, program: str, *, stdin: bool = False) -> list[str]:
        path = tmp_path / "program.py"
        program = textwrap.dedent(program)
        path.write_text(program)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-" if stdin else str(path)],
            input=program if stdin else "",
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    def test_a_script_without_a_guard_runs_once(self, tmp_path: Path) -> None:
        script = """
            import numpy as np
            import penalties as pn

            print("once")
            factor = 2.0

            def helper(x):
                return factor * x

            def there(x):
                return helper(x).sum()

            def maker(scale):
                return lambda x: scale * there(x)

            executor = pn.Executor(max_workers=2)
            functions = {"there": there, "closure": maker(0.5), "lambda": lambda x: x.sum()}
            terms = [pn.Term(fn, name=name, inputs="x", runs="process") for name, fn in functions.items()]
            print(float(executor.run(pn.Pipeline(terms), {"x": np.arange(4.0)}).total))
            """
        assert self.run(tmp_path, script) == ["once", "24.0"]

    def test_a_notebook_whose_loop_is_running(self, tmp_path: Path) -> None:
        """Code without a file, called on an event loop that runs, in a main module that changes under it."""
        cells = """
            import asyncio
            import numpy as np
            import penalties as pn

            class Scale:
                def __init__(self, by):
                    self.by = by
                def __call__(self, x):
                    return self.by * x.sum()

            async def cell():
                with pn.Executor(max_workers=1) as executor:
                    for by in (1.0, 2.0):
                        pipeline = pn.Pipeline([pn.Term(Scale(by), name="scaled", inputs="x", runs="process")])
                        print(float(executor.run(pipeline, {"x": np.ones(3)}).total))
                        print(float((await executor.run_async(pipeline, {"x": np.ones(3)})).total))

            asyncio.run(cell())
            """
        assert self.run(tmp_path, cells, stdin=True) == ["3.0", "3.0", "6.0", "6.0"]

    def test_the_programs_own_fork_server_is_left_alone(self, tmp_path: Path) -> None:
        script = """
            import multiprocessing
            import numpy as np
            import penalties as pn

            def preloaded():
                import sys
                return "wave" in sys.modules, "pebble" in sys.modules

            if __name__ == "__main__":
                context = multiprocessing.get_context("forkserver")
                context.set_forkserver_preload(["wave"])
                with pn.Executor(max_workers=1) as executor:
                    pipeline = pn.Pipeline([pn.Term(lambda x: x.sum(), name="sum", inputs="x", runs="process")])
                    print(float(executor.run(pipeline, {"x": np.ones(2)}).total))
                    with context.Pool(1) as pool:
                        print(*pool.apply(preloaded))
                    print(float(executor.run(pipeline, {"x": np.ones(2)}).total))
            """
        assert self.run(tmp_path, script.replace("wave", "colorsys")) == ["2.0", "True False", "2.0"]

    def test_a_module_beside_the_script_is_imported(self, tmp_path: Path) -> None:
        (tmp_path / "beside").mkdir()
        (tmp_path / "beside" / "neighbour.py").write_text("def doubled(x):\n    return 2 * x.sum()\n")
        script = """
            import sys
            sys.path.insert(0, "beside")
            import numpy as np
            import neighbour
            import penalties as pn

            with pn.Executor(max_workers=1) as executor:
                pipeline = pn.Pipeline([pn.Term(neighbour.doubled, runs="process")])
                print(float(executor.run(pipeline, {"x": np.ones(2)}).total))
            """
        assert self.run(tmp_path, script) == ["4.0"]

    @pytest.mark.slow
    def test_a_fork_of_the_caller_leaves_the_workers_alone(self, tmp_path: Path) -> None:
        script = """
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
                except RuntimeError:
                    print("not here", flush=True)
                sys.exit(0)
            os.waitpid(pid, 0)
            print(float(executor.run(pipeline, {"x": np.ones(3)}).total), flush=True)
            """
        assert self.run(tmp_path, script) == ["2.0", "not here", "3.0"]

    def test_a_daemon_thread_that_waits_for_terms_ends_with_the_program_in_silence(self, tmp_path: Path) -> None:
        script = """
            import asyncio, threading, time
            import numpy as np
            import penalties as pn

            began = threading.Barrier(3)

            def naps(x):
                began.wait(60)
                time.sleep(60)

            async def rests(x):
                began.wait(60)
                await asyncio.sleep(60)

            executor = pn.Executor(max_workers=1)
            for pipeline in (pn.Pipeline([pn.Term(naps, runs="thread")]), pn.Pipeline([rests])):
                threading.Thread(target=executor.run, args=(pipeline, {"x": np.ones(2)}), daemon=True).start()
            began.wait(60)
            print("ends")
            """
        assert self.run(tmp_path, script) == ["ends"]
