"""Terms that end their process."""

import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import socket
import threading
from typing import Any

import numpy as np

import penalties as pn

from .fault import PROCESS, fault, hang, squares


@fault(pn.WorkerLostError, "exit status 0", where=PROCESS, costs=0.3)
def exits_well(x: Any) -> Any:
    os._exit(0)


@fault(pn.WorkerLostError, "7", where=PROCESS, costs=0.3)
def exits_badly(x: Any) -> Any:
    os._exit(7)


@fault(pn.WorkerLostError, "signal 9", where=PROCESS, costs=0.3)
def is_killed(x: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    hang()


@fault(pn.WorkerLostError, "signal 11", where=PROCESS, costs=0.3, ray=False)
def reads_address_zero(x: Any) -> Any:
    return ctypes.string_at(0)


@fault(pn.WorkerLostError, "signal 6", where=PROCESS, costs=0.3)
def aborts(x: Any) -> Any:
    os.abort()


@fault(pn.WorkerLostError, where=PROCESS, costs=0.3, ray=False)
def terminates(x: Any) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    hang()


@fault(pn.WorkerLostError, "signal 14", where=PROCESS, costs=0.3, ray=False)
def sets_an_alarm(x: Any) -> Any:
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    hang()


@fault(pn.WorkerLostError, where=PROCESS, costs=0.3, ray=False)
def closes_every_descriptor(x: Any) -> Any:
    os.closerange(3, 1024)
    return squares(x)


@fault(pn.WorkerLostError, "signal 9", where=PROCESS, costs=0.3)
def is_killed_by_its_thread(x: Any) -> Any:
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
    hang()


def _allocate_beyond(limit: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as numbers:
        used = int(numbers.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, hard))
    kept: list[Any] = []
    while True:
        kept.append(np.ones(1 << 19))


@fault(pn.TermError, "raised MemoryError", where=PROCESS, costs=0.2, ray=False)
def exhausts_memory(x: Any) -> Any:
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        _allocate_beyond(64 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@fault(pn.WorkerLostError, "signal 24", where=PROCESS, costs=1.5, ray=False)
def exceeds_its_processor_time(x: Any) -> Any:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    used = resource.getrusage(resource.RUSAGE_SELF)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1, hard))
    while True:
        pass


@fault(pn.WorkerLostError, "signal 9", where=PROCESS, costs=0.3, ray=False)
def hides_from_the_caller(x: Any) -> Any:
    os.closerange(3, 1024)
    hang()


@fault(pn.WorkerLostError, where=PROCESS, costs=0.8, ray=False)
def hides_in_a_session_of_its_own(x: Any) -> Any:
    """As a program that becomes a daemon does: signals to the group of the broker do not reach it."""
    os.setsid()
    os.closerange(3, 1024)
    hang()


@fault(pn.WorkerLostError, "an invalid answer", where=PROCESS, costs=0.3, ray=False)
def answers_nonsense(x: Any) -> Any:
    connection().sendall(b"nonsense" * 200)
    return squares(x)


@fault(None, where=PROCESS, costs=0.3, ray=False)
def lowers_its_limits(x: Any) -> Any:
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_STACK):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (32 if limit == resource.RLIMIT_NOFILE else 0, hard))
    return squares(x)


_kept: list[int] = []


@fault(None, where=PROCESS, costs=0.3, ray=False, libraries=("torch",))
def leaves_no_descriptors(x: Any) -> Any:
    with contextlib.suppress(OSError):
        while True:
            _kept.append(os.open(os.devnull, os.O_RDONLY))
    return squares(x)


@fault(pn.WorkerLostError, where=PROCESS, costs=1.5, alone=True)
def kills_its_broker(x: Any) -> Any:
    os.kill(_broker(), signal.SIGKILL)
    hang()


@fault(pn.WorkerLostError, where=PROCESS, costs=2.0, alone=True)
def stops_its_broker_and_dies(x: Any) -> Any:
    os.kill(_broker(), signal.SIGSTOP)
    os._exit(9)


@fault(pn.WorkerLostError, where=PROCESS, costs=1.0, alone=True)
def kills_the_server(x: Any) -> Any:
    os.kill(os.getppid(), signal.SIGKILL)
    hang()


def _broker() -> int:
    broker = multiprocessing.parent_process()
    assert broker is not None, "in a worker"
    assert broker.pid is not None, "running"
    return broker.pid


def connection() -> socket.socket:
    """Of the worker to the caller."""
    for file in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(file))
            if found.family == socket.AF_UNIX and "socket-" in str(found.getpeername()):
                return found
            found.close()
    raise AssertionError("a worker has one")
