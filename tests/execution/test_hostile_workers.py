"""Workers, brokers and systems that do not do their part: every wait ends, with a result or with an error."""

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import penalties as pn
from penalties.execution import slots
from penalties.execution.messages import Answer, Kind
from penalties.execution.pools import brokered
from penalties.execution.pools.brokered import Brokered
from penalties.execution.pools.connected import Connected, GoneError
from penalties.execution.pools.processes import Processes
from penalties.execution.pools.threads import Threads

from .test_processes import task, total, value, who

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[Processes]:
    """One worker, for all of these: each leaves a pool that works."""
    pool = Processes(1)
    yield pool
    pool.close()


def pid_of(pool: Processes) -> int:
    return int(pool.start(task(who)).result().metrics["pid"])


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def broker_of(pool: Processes) -> int:
    return parent(parent(pid_of(pool)))


def at_the_connection(act: Callable[[socket.socket], Any]) -> Callable[[Any], Any]:
    """A term that finds the connection of its worker, as any code in that process can."""

    def term(x: Any) -> Any:
        for file in map(int, os.listdir("/dev/fd")):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(file)) as found:
                if found.family == socket.AF_UNIX and "socket-" in str(found.getpeername()):
                    act(found)
        return x.sum()

    return term


class TestAnswers:
    def test_bytes_that_are_no_answer_are_a_lost_worker(self, pool: Processes) -> None:
        garbage = at_the_connection(lambda connection: connection.sendall(b"not an answer; " * 40))
        with pytest.raises(pn.WorkerLostError, match="term: its worker sent an invalid answer"):
            pool.start(task(garbage)).result()
        assert value(pool.start(task(total))) == 2.0

    def test_a_second_answer_is_not_the_next_result(self, pool: Processes) -> None:
        def answers_twice(x: Any) -> Any:
            import gc

            from penalties.execution.messages import Answer, Kind
            from penalties.execution.worker import _Serving

            (serving,) = (one for one in gc.get_objects() if isinstance(one, _Serving))

            def again() -> None:
                time.sleep(0.1)
                serving._connection.sendall(Answer(number, Kind.DONE).packed())

            number = serving._task
            threading.Thread(target=again).start()
            return x.sum()

        def slow(x: Any) -> Any:
            time.sleep(0.3)
            return 3 * x.sum()

        first = pool.start(task(answers_twice))
        assert value(first) == 2.0
        assert value(pool.start(task(slow))) == 6.0

    @pytest.mark.parametrize("kind", [Kind.TAKEN, Kind.BEGAN, Kind.MORE])
    def test_a_worker_that_says_the_same_again_and_again_is_lost(self, pool: Processes, kind: Kind) -> None:
        """Each time it would get more time."""

        def repeats(x: Any) -> Any:
            import gc

            from penalties.execution.worker import _Serving

            (serving,) = (one for one in gc.get_objects() if isinstance(one, _Serving))
            while True:
                serving._send(kind, nbytes=1)
                time.sleep(0.2)

        running = pool.start(task(repeats, timeout=5.0))
        with pytest.raises(pn.WorkerLostError, match="term: its worker sent an invalid answer"):
            running.result()
        assert value(pool.start(task(total))) == 2.0

    def test_a_worker_that_closes_its_connection_and_lives_on_is_killed(self, pool: Processes, tmp_path: Path) -> None:
        pid = tmp_path / "pid"

        def hides(x: Any) -> Any:
            pid.write_text(str(os.getpid()))
            os.closerange(3, 256)
            time.sleep(60.0)

        with pytest.raises(pn.WorkerLostError, match=r"term: its process died \(killed by signal 9\)"):
            pool.start(task(hides)).result()
        assert not Path("/proc", pid.read_text()).exists()

    def test_one_that_has_left_the_group_of_its_broker_is_killed_and_replaced(
        self, pool: Processes, tmp_path: Path
    ) -> None:
        pid = tmp_path / "pid"

        def hides(x: Any) -> Any:
            pid.write_text(str(os.getpid()))
            os.setsid()
            os.closerange(3, 256)
            time.sleep(60.0)

        with pytest.raises(pn.WorkerLostError, match="term: its process died"):
            pool.start(task(hides)).result()
        start = time.monotonic()
        assert value(pool.start(task(total))) == 2.0
        # Before, nothing came until the broker gave up, after ten seconds.
        assert time.monotonic() - start < 9.0
        assert not Path("/proc", pid.read_text()).exists()

    def test_a_result_that_is_none_is_a_lost_worker(self, pool: Processes) -> None:
        def scribbles(x: Any) -> Any:
            from penalties.execution.slots import Slot

            write = Slot.write

            def nonsense(slot: Any, offset: int, data: bytes, arrays: Any) -> None:
                write(slot, offset, data, arrays)
                np.ndarray((1,), np.int64, slot._memory, offset)[0] = 1 << 40

            Slot.write = nonsense
            return x.sum()

        with pytest.raises(pn.WorkerLostError, match="term: its worker wrote an invalid result"):
            pool.start(task(scribbles)).result()
        assert value(pool.start(task(total))) == 2.0

    def test_a_worker_that_never_loads_a_function_is_lost(self, pool: Processes) -> None:
        def forgets(x: Any) -> Any:
            from penalties.execution import worker

            def refuse(request: Any, body: Any) -> Any:
                raise worker.UnknownFunctionError

            worker.load = refuse
            return x.sum()

        assert value(pool.start(task(forgets))) == 2.0
        assert value(pool.start(task(lambda x: 2 * x.sum()))) == 4.0

    @pytest.mark.parametrize("surprise", [SystemExit, KeyboardInterrupt, MemoryError])
    def test_a_worker_that_cannot_pack_its_result_says_so(self, pool: Processes, surprise: Any) -> None:
        def surprises(x: Any) -> Any:
            from penalties.execution import remote

            def fail(value: Any) -> Any:
                raise surprise

            remote.dumps_data = fail
            return x.sum()

        with pytest.raises(pn.TermError, match="term: "):
            pool.start(task(surprises, timeout=20.0)).result()
        assert value(pool.start(task(total))) == 2.0

    def test_a_result_too_large_for_the_limits_of_its_worker_is_an_error(self, pool: Processes) -> None:
        def large(x: Any) -> Any:
            state = np.ones(8_000_000)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), resource.RLIM_INFINITY))
            return pn.Evaluation(x.sum(), state=state)

        with pytest.raises(pn.TermError, match="term: could not be evaluated in a worker: .*(allocate|Memory)"):
            pool.start(task(large, timeout=20.0)).result()
        assert value(pool.start(task(total))) == 2.0

    def test_only_answers_to_tasks_that_were_sent_count(self) -> None:
        ours, theirs = socket.socketpair()
        connected = Connected(ours, 0, os.getpid())
        slot = slots.Slot.of_size(1)
        with theirs:
            connected.send(slot)
            number = int.from_bytes(theirs.recv(100)[:8], "little")
            assert connected.answer(0.0) is None
            theirs.sendall(Answer(number, Kind.BEGAN).packed())
            connected.send(slot)
            theirs.sendall(Answer(number, Kind.DONE).packed() + Answer(number + 1, Kind.BEGAN).packed())
            assert connected.answer(5.0) == Answer(number + 1, Kind.BEGAN)
            theirs.sendall(Answer(number + 2, Kind.DONE).packed())
            with pytest.raises(GoneError, match="an invalid answer"):
                connected.answer(5.0)
        with pytest.raises(GoneError):
            connected.answer(5.0)
        with pytest.raises(GoneError):
            connected.send(slot)
        slot.close()
        connected.close()


class TestStopped:
    def test_a_worker_that_was_stopped_while_it_rested_is_replaced(self, pool: Processes) -> None:
        os.kill(pid_of(pool), signal.SIGSTOP)
        assert value(pool.start(task(total, timeout=0.5))) == 2.0

    @pytest.mark.parametrize("whom", ["broker", "server"])
    def test_a_broker_that_was_stopped_goes_on_when_it_is_needed(self, pool: Processes, whom: str) -> None:
        worker = pid_of(pool)
        server = parent(worker)
        os.kill(parent(server) if whom == "broker" else server, signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        start = time.monotonic()
        assert value(pool.start(task(total))) == 2.0
        assert time.monotonic() - start < 20.0

    def test_closing_is_not_held_up_by_a_broker_that_was_stopped(self) -> None:
        pool = Processes(1)
        os.kill(broker_of(pool), signal.SIGSTOP)
        start = time.monotonic()
        pool.close()
        assert time.monotonic() - start < 10.0

    def test_a_broker_that_does_not_end_is_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(brokered, "_ENDING", 0.1)
        send = Brokered._signal
        monkeypatch.setattr(Brokered, "_signal", lambda self, number: number == signal.SIGCONT or send(self, number))
        pool = Processes(1)
        broker = broker_of(pool)
        os.kill(broker, signal.SIGSTOP)
        pool.close()
        assert not Path(f"/proc/{broker}").exists()


class TestRemoved:
    def test_files_that_somebody_removed_are_made_again(self, pool: Processes) -> None:
        worker = pid_of(pool)
        for folder in Path(slots.SHARED).glob(f"penalties-{os.getpid()}-*"):
            shutil.rmtree(folder)
        assert value(pool.start(task(total))) == 2.0
        os.kill(worker, signal.SIGKILL)
        start = time.monotonic()
        assert value(pool.start(task(total))) == 2.0
        assert time.monotonic() - start < 20.0

    def test_locks_that_somebody_removed_are_made_again(self) -> None:
        pool = Processes(2)
        naps = task(lambda x: time.sleep(1.0) or x.sum())
        running = [pool.start(naps) for _ in range(2)]
        assert [value(one) for one in running] == [2.0, 2.0]
        maps = Path(f"/proc/{broker_of(pool)}/maps").read_text()
        for lock in Path(slots.SHARED).glob("sem.*"):
            if str(lock) in maps:
                lock.unlink()
        os.kill(pid_of(pool), signal.SIGKILL)
        start = time.monotonic()
        while time.monotonic() < start + 6.0:
            with contextlib.suppress(pn.WorkerLostError):
                assert value(pool.start(task(total))) == 2.0
        running = [pool.start(naps) for _ in range(2)]
        assert [value(one) for one in running] == [2.0, 2.0]
        assert time.monotonic() - start < 40.0
        pool.close()


class TestLimits:
    def test_a_worker_whose_limits_changed_is_not_used_again(self, pool: Processes) -> None:
        def limits(x: Any) -> Any:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
            return x.sum(), {"pid": os.getpid()}

        before = pool.start(task(limits)).result()
        assert float(before.value) == 2.0
        assert pid_of(pool) != before.metrics["pid"]

    def test_a_worker_without_descriptors_is_replaced(self, pool: Processes) -> None:
        def leaks(x: Any) -> Any:
            kept = globals().setdefault("_kept_open", [])
            with contextlib.suppress(OSError):
                while True:
                    kept.append(os.open("/dev/null", os.O_RDONLY))
            return x.sum(), {"pid": os.getpid()}

        pid = pool.start(task(leaks)).result().metrics["pid"]
        running = pool.start(task(who, x=np.ones(100_000))).result()
        assert float(running.value) == 100_000.0
        assert running.metrics["pid"] != pid

    def test_exit_status_zero_is_told(self, pool: Processes) -> None:
        with pytest.raises(pn.WorkerLostError, match=r"term: its process died \(exit status 0\)"):
            pool.start(task(lambda x: os._exit(0))).result()


def no_descriptors() -> Any:
    """Inside, this process can open nothing more."""

    @contextlib.contextmanager
    def limited() -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))), hard))
        filled: list[int] = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    filled.append(os.open("/dev/null", os.O_RDONLY))
            yield
        finally:
            for file in filled:
                os.close(file)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return limited()


def nothing_left(*arguments: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


class TestShortage:
    def test_without_descriptors_a_term_fails_by_its_policy(self) -> None:
        pipeline = pn.Pipeline(
            [pn.Term(total, name="sums", runs="process", on_error="skip"), pn.Term("l1", inputs="x")]
        )
        with pn.Executor(max_workers=1) as executor:
            with no_descriptors():
                out = executor.run(pipeline, {"x": np.ones(2)})
            assert isinstance(out["sums"].error, pn.TermError)
            assert "Too many open files" in str(out["sums"].error)
            assert float(out.total) == 2.0
            assert float(executor.run(pipeline, {"x": np.ones(2)}).total) == 4.0

    def test_without_descriptors_for_a_loop_an_asynchronous_term_fails_by_its_policy(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def later(x: Any) -> Any:
            return x.sum()

        pipeline = pn.Pipeline([pn.Term(later, on_error="skip"), pn.Term("l1", inputs="x")])
        with pn.Executor() as executor:
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "new_event_loop", nothing_left)
                out = executor.run(pipeline, {"x": np.ones(2)})
            assert "later: raised OSError: [Errno 28]" in str(out["later"].error)
            assert float(executor.run(pipeline, {"x": np.ones(2)}).total) == 4.0

    def test_without_memory_to_start_a_term_it_fails_by_its_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pipeline = pn.Pipeline([pn.Term(total, name="sums", runs="thread", on_error="skip"), pn.Term("l1", inputs="x")])
        promised: Future[Any] = Future()
        promised.set_result(np.ones(2))
        with pn.Executor() as executor, monkeypatch.context() as patch:
            patch.setattr(Threads, "start", nothing_left)
            for inputs in ({"x": np.ones(2)}, {"x": np.ones(2), "unread": promised}):
                out = executor.run(pipeline, inputs)
                assert "sums: could not be started: OSError: [Errno 28]" in str(out["sums"].error)
                assert float(out.total) == 2.0

    def test_without_descriptors_a_worker_that_is_there_goes_on(self, pool: Processes) -> None:
        assert value(pool.start(task(total))) == 2.0
        assert value(pool.start(task(total))) == 2.0
        with no_descriptors():
            assert value(pool.start(task(total))) == 2.0
            with pytest.raises(pn.TermError, match="term: there is no room for .* bytes .*Too many open files"):
                pool.start(task(total, x=np.ones(100_000))).result()
        assert value(pool.start(task(total, x=np.ones(100_000)))) == 100_000.0

    def test_a_worker_that_connects_while_there_are_no_descriptors_is_taken_later(self, pool: Processes) -> None:
        os.kill(pid_of(pool), signal.SIGKILL)
        with no_descriptors(), pytest.raises(pn.TermError, match="term: .*Too many open files"):
            pool.start(task(total)).result()
        assert value(pool.start(task(total))) == 2.0

    def test_without_memory_for_a_large_result_the_term_fails(
        self, pool: Processes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        large = task(lambda x: pn.Evaluation(x.sum(), state=np.ones(1_000_000)))
        # The function is sent with the first, and the second has the slot that the others use again.
        assert [value(pool.start(large)) for _ in range(2)] == [2.0, 2.0]
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", nothing_left)
            running = pool.start(large)
            with pytest.raises(pn.TermError, match="term: there is no room for 8.* bytes .*--shm-size"):
                running.result()
        assert value(pool.start(large)) == 2.0

    def test_where_no_thread_can_start_the_term_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name == "penalties-process":
                raise RuntimeError("can't start new thread")
            start(thread)

        pool = Processes(1)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(pn.WorkerLostError, match="no worker could be started: .*can't start new thread"):
                pool.start(task(total)).result()
        assert value(pool.start(task(total))) == 2.0
        pool.close()

    def test_a_folder_whose_path_is_too_long_for_a_socket(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        deep = tmp_path / ("deep" * 25)
        deep.mkdir()
        monkeypatch.setattr(brokered, "SHARED", "/nowhere")
        monkeypatch.setattr("tempfile.tempdir", str(deep))
        pool = Processes(1)
        with pytest.raises(pn.WorkerLostError, match="path of its socket is too long: .*; set TMPDIR to a shorter"):
            pool.start(task(total)).result()
        pool.close()
        assert not list(deep.iterdir())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_that_numpy_does_not_have_itself(pool: Processes, dtype: str) -> None:
    def named(x: Any) -> pn.Evaluation:
        return pn.Evaluation(np.float32(x.astype(np.float32).sum()), state={"seen": str(x.dtype), "x": x})

    array = np.array([1.5, -2.0]).astype(getattr(ml_dtypes, dtype))
    for x in (array, jnp.asarray(array)):
        found = pool.start(task(named, x=x, differentiable=False)).result()
        assert float(found.value) == -0.5
        assert found.state["seen"] == dtype
        assert type(found.state["x"]) is type(x)
        assert found.state["x"].dtype == array.dtype
