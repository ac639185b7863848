"""However it ends, an executor leaves nothing behind: closed in the middle, cancelled, interrupted, killed."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn

from . import resources
from .faults import PLACES, awaited, hangs, released, squares, waits
from .trials import probe

pytestmark = pytest.mark.slow

X = torch.ones(20_000, dtype=torch.float64)


def naps(x: Any) -> Any:
    time.sleep(0.4)
    return squares(x)


def term(fn: Callable[..., Any], place: str, **more: Any) -> pn.Term:
    return (
        pn.Term(awaited(fn), name=f"{fn.__name__}_async", **more)
        if place == "async"
        else pn.Term(fn, name=f"{fn.__name__}_{place}", runs=place, **more)
    )


def napping() -> pn.Pipeline:
    async def rests(x: Any) -> Any:
        await asyncio.sleep(0.4)
        return squares(x)

    # More than there are workers: some have not begun.
    return pn.Pipeline(
        [
            *(pn.Term(naps, name=f"process_{i}", runs="process") for i in range(4)),
            *(pn.Term(naps, name=f"thread_{i}", runs="thread") for i in range(4)),
            pn.Term(rests),
        ]
    )


# Closing and cancelling.


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1, 0.3, 0.5])
def test_closing_while_terms_run(delay: float) -> None:
    executor = pn.Executor(max_workers=2)
    executor.run(pn.Pipeline([term(squares, "process")]), {"x": X})
    ended: list[Any] = []

    def work() -> None:
        try:
            ended.append(executor.run(napping(), {"x": X}))
        except BaseException as error:
            ended.append(error)

    caller = threading.Thread(target=work)
    caller.start()
    time.sleep(delay)
    start = time.monotonic()
    executor.close()
    closing = time.monotonic() - start
    caller.join(20)
    assert not caller.is_alive(), "run() never came back"
    assert isinstance(ended[0], RuntimeError), f"{ended[0]!r}"
    assert "closed" in str(ended[0]), f"{ended[0]!r}"
    assert closing < 10
    with pytest.raises(RuntimeError, match="closed"):
        executor.run(napping(), {"x": X})


def test_an_exception_in_the_loop_of_the_user() -> None:
    class Mine(Exception):
        pass

    def train() -> None:
        with pn.Executor(max_workers=2) as executor:
            for step in range(3):
                executor.run(pn.Pipeline([term(squares, place) for place in PLACES]), {"x": X}, step=step)
            raise Mine

    with pytest.raises(Mine):
        train()


def test_a_forgotten_executor_is_closed() -> None:
    executor = pn.Executor(max_workers=2)
    executor.run(pn.Pipeline([term(squares, place) for place in PLACES]), {"x": X})
    del executor


@pytest.mark.parametrize("delay", [0.01, 0.1, 0.3])
def test_cancelling_the_task_that_awaits(executor: pn.Executor, delay: float) -> None:
    probe(executor)

    async def main() -> None:
        await asyncio.wait_for(executor.run_async(napping(), {"x": X}), delay)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    probe(executor)


def test_an_input_that_fails_to_arrive(executor: pn.Executor) -> None:
    pipeline = pn.Pipeline([term(naps, "process"), term(naps, "thread"), pn.Term(waits, inputs="y")])
    late: Future[Any] = Future()
    threading.Timer(0.1, late.set_exception, (ConnectionError("the forward pass failed"),)).start()
    with pytest.raises(ConnectionError, match="the forward pass failed"):
        executor.run(pipeline, {"x": X, "y": late})
    probe(executor)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_program_inline_ends_the_run(executor: pn.Executor, error: type[BaseException]) -> None:
    def ends(x: Any) -> Any:
        raise error

    with pytest.raises(error):
        executor.run(pn.Pipeline([term(naps, "process"), term(naps, "thread"), pn.Term(ends)]), {"x": X})
    probe(executor)


def test_threads_that_hang_are_counted_and_refused(executor: pn.Executor) -> None:
    pipeline = pn.Pipeline([pn.Term(hangs, runs="thread", timeout=0.01, on_error="skip")])
    errors = [executor.run(pipeline, {"x": X})["hangs"].error for _ in range(36)]
    late = [error for error in errors if isinstance(error, pn.TermTimeoutError)]
    assert all(error.abandoned for error in late)
    assert executor.abandoned == len(late) == 32
    assert "abandoned" in str(errors[-1])
    released.set()
    end = time.monotonic() + 10
    while executor.abandoned and time.monotonic() < end:
        time.sleep(0.01)
    probe(executor)


# Races.


def test_terms_that_take_about_their_timeout(executor: pn.Executor) -> None:
    """Late or not, each time: no neighbour is lost, and nothing stalls."""
    rng = random.Random("about")
    probe(executor)
    late = 0

    def about(x: Any, seconds: Any) -> Any:
        time.sleep(seconds)
        return squares(x)

    for _ in range(60):
        seconds = 0.05 + rng.uniform(-0.004, 0.004)
        terms = [pn.Term(about, runs="process", timeout=0.05, on_error="skip", inputs=("x", "seconds"))]
        terms += [pn.Term(squares, name=f"well_{i}", runs="process") for i in range(4)]
        start = time.monotonic()
        out = executor.run(pn.Pipeline(terms), {"x": X, "seconds": seconds})
        assert time.monotonic() - start < 4
        late += out["about"].error is not None
        well = [float(out[f"well_{i}"].value) for i in range(4)]
        assert well == [20_000.0] * 4
    assert late > 0


def test_callers_in_several_threads() -> None:
    wrong: list[str] = []

    def exits(x: Any) -> Any:
        os._exit(3)

    def caller(number: int, executor: pn.Executor) -> None:
        rng = random.Random(number)
        for step in range(15):
            x = torch.full((20_000,), float(step + number), dtype=torch.float64)
            fault = rng.choice((exits, hangs, squares))
            terms = [
                term(squares, "process"),
                pn.Term(fault, name="fault", runs="process", timeout=0.1 if fault is hangs else None, on_error="skip"),
                term(squares, "thread"),
                term(squares, "async"),
            ]
            try:
                out = executor.run(pn.Pipeline(terms), {"x": x})
                found = [float(one.value) for one in out if one.name != "fault"]
                assert found == [20_000.0 * (step + number) ** 2] * 3, found
                assert (out["fault"].error is None) == (fault is squares)
            except Exception as error:
                wrong.append(f"caller {number}, step {step}, {fault.__name__}: {error!r}")

    with pn.Executor(max_workers=2) as executor:
        callers = [threading.Thread(target=caller, args=(number, executor)) for number in range(4)]
        for one in callers:
            one.start()
        for one in callers:
            one.join()
        assert not wrong, "\n".join(wrong)
        probe(executor)


def test_a_worker_that_dies_while_it_answers(executor: pn.Executor) -> None:
    """Somewhere between evaluating and sending: neighbours that may run again give their numbers, and soon."""
    rng = random.Random("answering")

    def large(x: Any, seconds: Any, state: Any) -> Any:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return pn.Evaluation(x.sum(), state=b"x" * (50 << 20))

    for _ in range(12):
        terms = [pn.Term(large, runs="process", on_error="skip", inputs=("x", "seconds"))]
        terms += [pn.Term(squares, name=f"well_{i}", runs="process", idempotent=True) for i in range(3)]
        start = time.monotonic()
        out = executor.run(pn.Pipeline(terms), {"x": X, "seconds": rng.uniform(0.02, 0.25)})
        assert time.monotonic() - start < 20
        well = [float(out[f"well_{i}"].value) for i in range(3)]
        assert well == [20_000.0] * 3
        # The one that was to die may do so later than it answered, under a neighbour that has already run again once.
        time.sleep(0.3)
    probe(executor)


def test_workers_that_are_killed_while_they_rest(executor: pn.Executor) -> None:
    for whom in ("workers", "server", "all"):
        for delay in (0.0, 0.1):
            probe(executor)
            workers, server = _workers()
            locks = {name for name in os.listdir("/dev/shm") if any(f"shm/{name}" in _mapped(pid) for pid in server)}
            for pid in {"workers": workers, "server": server, "all": workers + server}[whom]:
                os.kill(pid, signal.SIGKILL)
            time.sleep(delay)
            probe(executor)
            probe(executor)
            if whom != "workers":
                assert not {name for name in locks if name.startswith("sem.")} & set(os.listdir("/dev/shm"))


def _workers() -> tuple[list[int], list[int]]:
    """The processes that evaluate terms, and the server that they come from."""
    every = resources.marked(os.environ[resources.MARK]) - {os.getpid()}
    server = [pid for pid in every if resources.parent(pid) == os.getpid()]
    return [pid for pid in every if pid not in server], server


# What a term sees of the others and of itself.


def test_coroutines_do_not_take_each_others_gradient(executor: pn.Executor) -> None:
    async def fetches(x: Any) -> Any:
        with torch.no_grad():
            await asyncio.sleep(0.05)
            assert not torch.is_grad_enabled()
        return squares(x)

    async def fetches_later(x: Any) -> Any:
        await asyncio.sleep(0.01)
        with torch.no_grad():
            await asyncio.sleep(0.08)
            assert not torch.is_grad_enabled()
        assert torch.is_grad_enabled()
        return squares(x)

    async def computes(x: Any) -> Any:
        await asyncio.sleep(0.03)
        return squares(x)

    pipeline = pn.Pipeline([fetches, fetches_later, computes])
    for _ in range(3):
        for wrt in (None, "x"):
            x = X.clone().requires_grad_()
            out = executor.run(pipeline, {"x": x}, wrt=wrt)
            if wrt is None:
                out.total.backward()
            assert [one.grad_error for one in out] == [None] * 3
            assert torch.equal(x.grad if wrt is None else out.gradient["x"], 6 * X)


def test_a_second_attempt_sees_the_inputs_that_were_given(executor: pn.Executor, tmp_path: Path) -> None:
    tried = tmp_path / "tried"

    def changes_and_dies(x: Any) -> Any:
        value = squares(x.clone())
        x.mul_(3)
        if not tried.exists():
            tried.touch()
            os._exit(5)
        return value

    pipeline = pn.Pipeline([pn.Term(changes_and_dies, runs="process", idempotent=True)])
    assert float(executor.run(pipeline, {"x": X}).total) == 20_000.0


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_memory_that_a_term_keeps_does_not_change(kind: str) -> None:
    """And what it kept and dropped again is not kept for it: a worker does not grow."""

    def keeps(x: Any, step: Any) -> Any:
        kept = globals().setdefault("_kept_for_a_test", {})
        for number, array in kept.items():
            assert float(array[0]) == number, "the memory of an earlier step has changed"
            assert float(array[-1]) == number
        kept.pop(step - 5, None)
        kept[step] = x
        with open("/proc/self/statm") as numbers:
            pages = int(numbers.read().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))
        return x.sum() * 0, {"resident": float(pages), "descriptors": float(descriptors)}

    make = {"numpy": np.full, "torch": torch.full, "jax": _jax_full}[kind]
    pipeline = pn.Pipeline([pn.Term(keeps, runs="process", differentiable=False, inputs="x")])
    resident, descriptors = [], []
    with pn.Executor(max_workers=1) as executor:
        for step in range(120):
            out = executor.run(pipeline, {"x": make((1 << 18,), float(step))}, step=step)
            resident.append(float(out["keeps"].metrics["resident"]) * os.sysconf("SC_PAGE_SIZE"))
            descriptors.append(float(out["keeps"].metrics["descriptors"]))
    # 100 steps of 1 or 2 MB each.
    assert resident[-1] < resident[20] + 30e6
    assert descriptors[-1] < descriptors[20] + 20


def _jax_full(shape: tuple[int, ...], value: float) -> Any:
    import jax.numpy as jnp

    return jnp.full(shape, value)


@pytest.mark.parametrize("then", ["end", "idle", "busy"])
def test_a_process_that_a_term_leaves_behind_holds_nothing_up(tmp_path: Path, then: str) -> None:
    """It has copies of all descriptors of the worker, and so no end of a pipe is seen."""
    child = tmp_path / "child"

    def leaves_a_child(x: Any) -> Any:
        if os.fork() == 0:
            child.write_text(str(os.getpid()))
            time.sleep(60)
            os._exit(0)
        if then == "busy":
            os._exit(7)
        return squares(x)

    executor = pn.Executor(max_workers=1)
    start = time.monotonic()
    out = executor.run(pn.Pipeline([pn.Term(leaves_a_child, runs="process", on_error="skip")]), {"x": X})
    assert (type(out["leaves_a_child"].error) is pn.WorkerLostError) == (then == "busy"), out["leaves_a_child"].error
    if then == "idle":
        orphan = int(child.read_text())
        workers, _ = _workers()
        for pid in set(workers) - {orphan}:
            os.kill(pid, signal.SIGKILL)
    if then != "end":
        executor.run(pn.Pipeline([pn.Term(squares, runs="process")]), {"x": X})
    executor.close()
    taken = time.monotonic() - start
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(child.read_text()), signal.SIGKILL)
    assert taken < 20


# Programs that end in the middle, each in a process of its own.

PREAMBLE = """
import asyncio, os, sys, time
import numpy as np
import penalties as pn

def squares(x):
    return (x * x).sum()

def hangs(x):
    time.sleep(60)

def holds_the_lock(x):
    return sum(range(10**11)) * x.sum()

async def waits(x):
    await asyncio.sleep(60)

x = np.ones(20_000)
executor = pn.Executor(max_workers=3)
executor.run(pn.Pipeline([pn.Term(squares, runs="process")]), {"x": x})
mixed = pn.Pipeline([pn.Term(hangs, name=place, runs=place) for place in ("process", "thread")] + [pn.Term(waits)])
stubborn = pn.Pipeline([pn.Term(holds_the_lock, runs="process")])
print("ready", flush=True)
"""
# No `if __name__ == "__main__"`: workers do not run the script again.
RUNNING = "with executor:\n    executor.run(mixed, {'x': x})\n"
STUBBORN = "with executor:\n    executor.run(stubborn, {'x': x})\n"
LOOPING = (
    "with executor:\n    while True:\n        executor.run(pn.Pipeline([pn.Term(squares, runs='process')]), {'x': x})\n"
)
IDLE = "time.sleep(60)\n"


class Program:
    """A script that runs, and what it holds."""

    def __init__(self, folder: Path, body: str) -> None:
        script = folder / "program.py"
        script.write_text(textwrap.dedent(PREAMBLE) + body)
        self.token = os.urandom(8).hex()
        self.shared = set(os.listdir("/dev/shm"))
        self.process = subprocess.Popen(
            [sys.executable, script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, resources.MARK: self.token, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]
        time.sleep(0.7)
        self.blocks = {
            name
            for pid in resources.marked(self.token)
            for name in (entry.name for entry in Path("/dev/shm").iterdir())
            if name in _mapped(pid)
        }

    def end(self, how: Callable[[int], object] | None) -> tuple[int, str]:
        """Its status and what it said; it is to end soon, with everything that it started and shared."""
        if how is not None:
            assert self.process.poll() is None, self.process.communicate()[1]
            how(self.process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=20)
        left = self._left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, said = self.process.communicate()
        assert not left, f"still run: {left}"
        still = {name for name in self.blocks if (Path("/dev/shm") / name).exists()}
        assert not still, f"still in /dev/shm: {still}"
        return self.process.returncode, said

    def _left(self) -> dict[int, str]:
        end = time.monotonic() + 10
        while True:
            left = {pid: resources.command(pid) for pid in resources.marked(self.token, trackers=True)}
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)


def _mapped(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def to_it(number: int) -> Callable[[int], None]:
    return lambda pid: os.kill(pid, number)


def to_all(number: int) -> Callable[[int], None]:
    """As a terminal does."""
    return lambda pid: os.killpg(pid, number)


def twice(number: int) -> Callable[[int], None]:
    def send(pid: int) -> None:
        os.killpg(pid, number)
        time.sleep(0.15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)

    return send


BODIES = {"running": RUNNING, "stubborn": STUBBORN, "looping": LOOPING, "idle": IDLE}


@pytest.mark.parametrize(
    ("body", "send"),
    [*((body, to_all) for body in BODIES), ("running", to_it), ("running", twice), ("stubborn", twice)],
)
def test_interrupt(tmp_path: Path, body: str, send: Any) -> None:
    program = Program(tmp_path, BODIES[body])
    start = time.monotonic()
    status, said = program.end(send(signal.SIGINT))
    assert time.monotonic() - start < 12
    assert status in (1, -signal.SIGINT)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "leaked" not in said


@pytest.mark.parametrize(
    ("body", "number"), [*((body, signal.SIGKILL) for body in BODIES), ("running", signal.SIGTERM)]
)
def test_the_caller_is_killed(tmp_path: Path, body: str, number: int) -> None:
    status, _ = Program(tmp_path, BODIES[body]).end(to_it(number))
    assert status == -number


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("", 0, ""),
        ("sys.exit(4)", 4, ""),
        ("raise ValueError('of the user')", 1, "ValueError: of the user"),
        ("with executor:\n    raise ValueError('of the user')", 1, "ValueError: of the user"),
        (
            "executor.run(pn.Pipeline([pn.Term(hangs, runs='thread', timeout=0.1, on_error='skip')]), {'x': x})",
            0,
            "",
        ),
    ],
    ids=["end", "exit", "raise", "raise inside", "abandoned thread"],
)
def test_a_program_that_ends_without_closing(tmp_path: Path, body: str, status: int, says: str) -> None:
    found, said = Program(tmp_path, body).end(None)
    assert found == status, said
    assert said.rstrip().endswith(says)
    assert said.count("Traceback") == (1 if says else 0), said
    assert "leaked" not in said


FORKING = {
    "exits": "sys.exit(0)",
    "raises": "raise ValueError('in the child')",
    "closes": "executor.close(); os._exit(0)",
    "forgets": "import gc\n    del executor\n    gc.collect()\n    os._exit(0)",
}


@pytest.mark.parametrize("child", FORKING)
def test_a_caller_that_forks(tmp_path: Path, child: str) -> None:
    """What the child does with its copy is nothing to the parent, whose terms run on."""
    body = f"""
import threading
ended = []
def slow(x):
    time.sleep(1.0)
    return squares(x)
p = pn.Pipeline([pn.Term(slow, runs="process"), pn.Term(squares, runs="thread")])
caller = threading.Thread(target=lambda: ended.append(float(executor.run(p, {{"x": x}}).total)))
caller.start()
time.sleep(0.3)
pid = os.fork()
if pid == 0:
    sys.stderr = open(os.devnull, "w") if {child!r} == "raises" else sys.stderr
    {FORKING[child]}
os.waitpid(pid, 0)
caller.join()
assert ended == [40_000.0], ended
assert float(executor.run(p, {{"x": x}}).total) == 40_000.0
executor.close()
"""
    status, said = Program(tmp_path, body).end(None)
    assert (status, said) == (0, "")


def test_little_shared_memory(tmp_path: Path) -> None:
    """As in containers, where it is 64 MB: an array that does not fit is no reason to die."""
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(PREAMBLE)
        + """
import torch

large = torch.ones(20_000_000, dtype=torch.float64, requires_grad=True)
for _ in range(2):
    out = executor.run(pn.Pipeline([pn.Term(squares, runs="process", on_error="skip")]), {"x": large})
    error = out["squares"].error
    assert error is not None or float(out.total) == 20_000_000.0, out
assert float(executor.run(pn.Pipeline([pn.Term(squares, runs="process")]), {"x": x}).total) == 20_000.0
executor.close()
"""
    )
    small = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    try:
        subprocess.run([*small, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system of its own")
    found = subprocess.run(
        [*small, f'{mount} && exec "$0" "$1"', sys.executable, script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert found.returncode == 0, found.stderr
