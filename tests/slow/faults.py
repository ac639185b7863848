"""Terms that misbehave, each in one way, and what an executor is to make of it.

They take `x`, an array of any library. Workers import this module, so it imports little.
"""

import asyncio
import contextlib
import ctypes
import functools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import penalties as pn

__all__ = ["CHATTER", "FAULTS", "HEALTHY", "PLACES", "Fault", "awaited", "released", "squares"]

PLACES = ("inline", "thread", "process", "async")
AWAY = ("thread", "process", "async")
PROCESS = ("process",)
FORKABLE = ("numpy", "torch")
"""JAX has threads, and says itself that a fork may hang."""

released = threading.Event()
"""Set by the test when it has seen enough: what hangs in a thread or on a loop goes on, and ends."""

CHATTER = "a line of output; "
_LATE = 0.25
"""Seconds that a term which hangs may take."""


@dataclass(frozen=True)
class Fault:
    """A function, and what comes of a term that calls it."""

    fn: Callable[..., Any]
    outcome: type[Exception] | None
    """The error that the term has, or None where it is well after all, and is worth `squares`."""
    says: str = ""
    """What its message has to say."""
    places: tuple[str, ...] = PLACES
    timeout: float | None = None
    state: bool = False
    """Whether its new state is to be what `huge_state` gave."""
    costs: float = 0.0
    """Seconds beyond a few milliseconds: those that cost a lot run less often."""
    alone: bool = False
    """Whether it harms others in its place, as documented, and is never mixed with them."""
    libraries: tuple[str, ...] = ("numpy", "torch", "jax")

    @property
    def name(self) -> str:
        return self.fn.__name__


FAULTS: list[Fault] = []


def fault(outcome: type[Exception] | None, says: str = "", **more: Any) -> Callable[[Callable[..., Any]], Any]:
    def put(fn: Callable[..., Any]) -> Callable[..., Any]:
        FAULTS.append(Fault(fn, outcome, says, **more))
        return fn

    return put


def awaited(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same term as a coroutine that lets others run first."""
    if asyncio.iscoroutinefunction(fn):
        return fn

    @functools.wraps(fn)
    async def later(*arguments: Any, **keywords: Any) -> Any:
        await asyncio.sleep(0.001)
        return fn(*arguments, **keywords)

    return later


# Terms that are well. NumPy has no gradients of its own: there they bring theirs.


def squares(x: Any) -> Any:
    return _brought(x, (x * x).sum(), 2 * x)


def cubes(x: Any) -> Any:
    return _brought(x, (x * x * x).sum(), 3 * x * x)


def line(x: Any) -> Any:
    return _brought(x, 3 * x.sum(), 0 * x + 3)


HEALTHY = {squares: lambda x: (x * x, 2 * x), cubes: lambda x: (x**3, 3 * x * x), line: lambda x: (3 * x, 0 * x + 3)}
"""Each with what it adds up and the gradient, in NumPy."""


def _brought(x: Any, value: Any, slope: Any, **more: Any) -> Any:
    if isinstance(x, np.ndarray) or more:
        return pn.Evaluation(value, gradient={"x": slope} if isinstance(x, np.ndarray) else None, **more)
    return value


# Terms that raise.


class Unpicklable(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Particular(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Root(BaseException):
    pass


@fault(pn.TermError, "raised ValueError: three")
def raises(x: Any) -> Any:
    raise ValueError("three")


@fault(pn.TermError, "raised Unpicklable: a lock")
def raises_unpicklable(x: Any) -> Any:
    raise Unpicklable("a lock")


@fault(pn.TermError, "raised Particular: 1 and 2")
def raises_particular(x: Any) -> Any:
    raise Particular(1, 2)


@fault(pn.TermError, "raised Particular")
def raises_inside_a_local_class(x: Any) -> Any:
    class Local(Particular):
        pass

    Local.__name__ = "Particular"
    raise Local(x.sum(), lambda: 2)


@fault(pn.TermError, "raised Speechless")
def raises_speechless(x: Any) -> Any:
    raise Speechless


@fault(pn.TermError, "raised StopIteration", places=("inline", "thread", "process"))
def raises_stop_iteration(x: Any) -> Any:
    return next(iter(()))


@fault(pn.TermError, "raised StopAsyncIteration")
def raises_stop_async_iteration(x: Any) -> Any:
    raise StopAsyncIteration


@fault(pn.TermError, "raised MemoryError")
def raises_memory_error(x: Any) -> Any:
    raise MemoryError


@fault(pn.TermError, "raised RecursionError")
def recurses(x: Any) -> Any:
    return recurses(x)


@fault(pn.TermError, "raised ExceptionGroup")
def raises_group(x: Any) -> Any:
    raise ExceptionGroup("several", [ValueError(1), Unpicklable("two")])


@fault(pn.TermError, "raised TimeoutError")
def raises_timeout(x: Any) -> Any:
    raise TimeoutError("of its own")


@fault(pn.TermError, "raised RuntimeError: the pool is closed")
def raises_like_a_pool(x: Any) -> Any:
    raise RuntimeError("the pool is closed")


@fault(pn.TermError, "raised BrokenPipeError")
def raises_like_a_pipe(x: Any) -> Any:
    raise BrokenPipeError(32, "broken")


@fault(pn.TermError, "raised Particular: 1 and 2")
def raises_with_a_long_cause(x: Any) -> Any:
    try:
        raises_unpicklable(x)
    except Unpicklable as error:
        raise Particular(1, 2) from error


@fault(pn.TermError, "raised NonFiniteError")
def raises_non_finite(x: Any) -> Any:
    raise pn.NonFiniteError("nan", "found elsewhere")


@fault(pn.TermError, "no such key", places=AWAY)
def raises_input_error(x: Any) -> Any:
    raise pn.InputError("no such key")


@fault(pn.TermError, "raised SystemExit", places=AWAY)
def leaves(x: Any) -> Any:
    sys.exit(3)


@fault(pn.TermError, "raised KeyboardInterrupt", places=AWAY)
def interrupts(x: Any) -> Any:
    raise KeyboardInterrupt


@fault(pn.TermError, "raised GeneratorExit", places=AWAY)
def raises_generator_exit(x: Any) -> Any:
    raise GeneratorExit


@fault(pn.TermError, "CancelledError", places=AWAY)
def cancels_itself(x: Any) -> Any:
    raise asyncio.CancelledError


@fault(pn.TermError, "raised Root", places=AWAY)
def raises_root(x: Any) -> Any:
    raise Root("of all")


# Terms that hang.


def _hang() -> None:
    released.wait(60)


@fault(pn.TermTimeoutError, places=("thread", "process"), timeout=_LATE, costs=0.5)
def hangs(x: Any) -> Any:
    _hang()
    return squares(x)


@fault(pn.TermTimeoutError, places=("thread", "process"), timeout=_LATE, costs=0.5)
def spins(x: Any) -> Any:
    end = time.monotonic() + 60
    while not released.is_set() and time.monotonic() < end:
        # Polite in the caller's process, where an abandoned one takes time from all that follow.
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.001)
    return squares(x)


@fault(pn.TermTimeoutError, "was cancelled", places=("async",), timeout=_LATE, costs=0.3)
async def waits(x: Any) -> Any:
    await asyncio.sleep(60)
    return squares(x)


@fault(pn.TermTimeoutError, "runs on", places=("async",), timeout=_LATE, costs=1.5)
async def waits_and_refuses(x: Any) -> Any:
    while not released.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
    return squares(x)


@fault(pn.TermTimeoutError, "runs on", places=("async",), timeout=_LATE, costs=2.0, alone=True)
async def blocks_the_loop(x: Any) -> Any:
    _hang()
    return squares(x)


@fault(pn.TermTimeoutError, places=PROCESS, timeout=_LATE, costs=5.0)
def holds_the_lock(x: Any) -> Any:
    # One call of C code, which no signal handler of Python's interrupts.
    return sum(range(10**11)) * squares(x)


@fault(pn.TermTimeoutError, places=PROCESS, timeout=_LATE, costs=5.0)
def ignores_termination(x: Any) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang()
    return squares(x)


@fault(pn.TermTimeoutError, places=PROCESS, timeout=_LATE, costs=5.0)
def stops_itself(x: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)
    return squares(x)


@fault(pn.TermTimeoutError, places=PROCESS, timeout=2.5, costs=3.0)
def hangs_in_an_executor(x: Any) -> Any:
    with pn.Executor(max_workers=1) as executor:
        return executor.run(pn.Pipeline([pn.Term(hangs, runs="thread", timeout=60)]), {"x": x}).total


# Terms that return what is no value.


@fault(pn.TermError, "returned")
def returns_string(x: Any) -> Any:
    return "0.5"


@fault(pn.TermError, "returned")
def returns_none(x: Any) -> Any:
    return None


@fault(pn.TermError, "returned")
def returns_list(x: Any) -> Any:
    return [x.sum()]


@fault(pn.TermError, "returned")
def returns_three(x: Any) -> Any:
    return x.sum(), {}, {}


@fault(pn.TermError, "returned an array of shape")
def returns_vector(x: Any) -> Any:
    return x * x


@fault(pn.TermError, "returned")
def returns_object(x: Any) -> Any:
    return Unpicklable("as a value")


@fault(pn.TermError, "returned")
def returns_generator(x: Any) -> Any:
    def parts() -> Iterator[Any]:
        yield x.sum()

    return parts()


@fault(pn.TermError, "returned a plain number")
def returns_number(x: Any) -> Any:
    return 0.5


@fault(pn.TermError, "returned a pair")
def returns_pair(x: Any) -> Any:
    return x.sum(), "metrics"


@fault(pn.TermError, "the metric note")
def returns_words_as_metrics(x: Any) -> Any:
    return x.sum(), {"note": "fine"}


@fault(pn.TermError, "a metric named")
def returns_nameless_metrics(x: Any) -> Any:
    return x.sum(), {3: 1.0}


@fault(pn.TermError, "the metric deep")
def returns_locks_as_metrics(x: Any) -> Any:
    return x.sum(), {"deep": threading.Lock()}


@fault(pn.TermError, "returned a gradient of shape")
def brings_another_shape(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": x[1:]})


@fault(pn.TermError, 'returned a gradient for "y"')
def brings_an_unknown_gradient(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"y": x})


@fault(pn.TermError, "returned a gradient")
def brings_no_array(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": ["steep", "shallow"]})


@fault(pn.TermError, "returned", places=("thread", "process"))
def returns_a_promise_of_garbage(x: Any) -> Any:
    async def later() -> str:
        return "0.5"

    return later()


@fault(pn.TermError, "cannot pickle", places=PROCESS)
def returns_a_lock_as_state(x: Any, state: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": 0 * x + 1}, state=threading.Lock())


class Sour:
    """Pickles, and cannot be made again."""

    def __reduce__(self) -> Any:
        return int, ("sour",)


@fault(pn.TermError, places=PROCESS)
def returns_sour_state(x: Any, state: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": 0 * x + 1}, state=Sour())


# Values that are no numbers, and much of everything.


@fault(pn.NonFiniteError, "nan")
def is_nan(x: Any) -> Any:
    return _brought(x, (x * float("nan")).sum(), x * float("nan"))


@fault(pn.NonFiniteError, "inf")
def is_infinite(x: Any) -> Any:
    return _brought(x, (x * x).sum() + float("inf"), 2 * x)


@fault(pn.NonFiniteError, "-inf")
def is_minus_infinity(x: Any) -> Any:
    return _brought(x, (x * x).sum() * float("inf") * -1, x)


@fault(pn.TermError, "returned an array of shape", costs=0.1)
def returns_millions(x: Any) -> Any:
    return np.zeros(4_000_000) if isinstance(x, np.ndarray) else (x[:1] + 0 * x[:1]).repeat(4_000_000)


@fault(pn.TermError, "the metric all", costs=0.1)
def measures_millions(x: Any) -> Any:
    return x.sum(), {"all": np.zeros(4_000_000)}


@fault(None, state=True, costs=0.3)
def keeps_millions(x: Any, state: Any) -> Any:
    return _brought(x, (x * x).sum(), 2 * x, state={"array": np.full(2_000_000, 0.5), "bytes": b"x" * 10_000_000})


# Terms that end their process.


@fault(pn.WorkerLostError, places=PROCESS, costs=0.3)
def exits_well(x: Any) -> Any:
    os._exit(0)


@fault(pn.WorkerLostError, "7", places=PROCESS, costs=0.3)
def exits_badly(x: Any) -> Any:
    os._exit(7)


@fault(pn.WorkerLostError, "signal 9", places=PROCESS, costs=0.3)
def is_killed(x: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    _hang()


@fault(pn.WorkerLostError, "signal 11", places=PROCESS, costs=0.3)
def reads_address_zero(x: Any) -> Any:
    return ctypes.string_at(0)


@fault(pn.WorkerLostError, "signal 6", places=PROCESS, costs=0.3)
def aborts(x: Any) -> Any:
    os.abort()


@fault(pn.WorkerLostError, places=PROCESS, costs=0.3)
def terminates(x: Any) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    _hang()


@fault(pn.WorkerLostError, "signal 14", places=PROCESS, costs=0.3)
def sets_an_alarm(x: Any) -> Any:
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    _hang()


@fault(pn.WorkerLostError, places=PROCESS, costs=0.3)
def closes_every_descriptor(x: Any) -> Any:
    os.closerange(3, 1024)
    return squares(x)


@fault(pn.WorkerLostError, "signal 9", places=PROCESS, costs=0.3)
def is_killed_by_its_thread(x: Any) -> Any:
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
    _hang()


def _allocate_beyond(limit: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as numbers:
        used = int(numbers.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, hard))
    kept: list[Any] = []
    while True:
        kept.append(np.ones(1 << 19))


@fault(pn.TermError, "raised MemoryError", places=PROCESS, costs=0.2)
def exhausts_memory(x: Any) -> Any:
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        _allocate_beyond(64 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# Terms that do what they should not, and are well all the same.


@fault(None, places=PROCESS, costs=0.1, libraries=FORKABLE)
def forks_and_returns_twice(x: Any) -> Any:
    os.fork()
    return squares(x)


@fault(None, places=PROCESS, costs=0.1, libraries=FORKABLE)
def forks_and_exits(x: Any) -> Any:
    child = os.fork()
    if child == 0:
        os._exit(3)
    os.waitpid(child, 0)
    return squares(x)


@fault(None, places=PROCESS, costs=0.1, libraries=FORKABLE)
def forks_and_raises(x: Any) -> Any:
    child = os.fork()
    if child == 0:
        raise ValueError("in the child")
    os.waitpid(child, 0)
    return squares(x)


@fault(None, places=PROCESS, costs=0.1, libraries=FORKABLE)
def forks_and_leaves(x: Any) -> Any:
    child = os.fork()
    if child == 0:
        sys.exit(5)
    os.waitpid(child, 0)
    return squares(x)


@fault(None)
def prints_a_lot(x: Any) -> Any:
    for _ in range(100):
        print(CHATTER * 100)
        print(CHATTER * 100, file=sys.stderr)
    return squares(x)


@fault(None)
def starts_threads(x: Any) -> Any:
    for _ in range(5):
        threading.Thread(target=time.sleep, args=(0.05,), name="of-the-term").start()
    return squares(x)


@fault(None, places=PROCESS)
def starts_an_endless_thread(x: Any) -> Any:
    threading.Thread(target=time.sleep, args=(600,)).start()
    return squares(x)


@fault(None, costs=0.05)
def starts_a_program(x: Any) -> Any:
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    return squares(x)


@fault(None, places=PROCESS, alone=True)
def closes_its_streams(x: Any) -> Any:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()
    return squares(x)


_kept: list[tuple[Any, Any]] = []


@fault(None, libraries=("numpy", "torch"))
def keeps_its_inputs(x: Any) -> Any:
    for array, copy in _kept:
        assert np.array_equal(_numpy(array), copy), "the memory of an earlier step has changed"
    del _kept[:-3]
    _kept.append((x, _numpy(x).copy()))
    return squares(x)


def _numpy(x: Any) -> Any:
    return np.asarray(x.detach() if hasattr(x, "detach") else x)


@fault(None, places=PROCESS, libraries=("numpy", "torch"))
def changes_its_inputs(x: Any) -> Any:
    value = squares(_copied(x))
    with contextlib.suppress(ValueError):
        # A large one may be lent to be read only.
        _numpy(x)[:] = -1.0
    return value


def _copied(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


@fault(None)
def calls_a_pipeline(x: Any) -> Any:
    inner = pn.Pipeline([pn.Term(squares, 0.5), pn.Term(squares, 0.5, name="again")])
    return _brought(x, inner(x=x).total, 2 * x)


@fault(None, costs=0.05)
def runs_an_executor(x: Any) -> Any:
    inner = pn.Pipeline([pn.Term(squares, 0.5, runs="thread"), pn.Term(awaited(squares), 0.5, name="again")])
    with pn.Executor(max_workers=1) as executor:
        return _brought(x, executor.run(inner, {"x": x}).total, 2 * x)


@fault(None, places=PROCESS, costs=3.0)
def runs_processes(x: Any) -> Any:
    with pn.Executor(max_workers=1) as executor:
        return _brought(x, executor.run(pn.Pipeline([pn.Term(squares, runs="process")]), {"x": x}).total, 2 * x)


@fault(None, places=("thread", "process"))
async def is_awaited_elsewhere(x: Any) -> Any:
    await asyncio.sleep(0.001)
    return squares(x)
