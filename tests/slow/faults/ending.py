"""Terms that end their process."""

import ctypes
import os
import resource
import signal
import threading
from typing import Any

import numpy as np

import penalties as pn

from .fault import PROCESS, fault, hang, squares


@fault(pn.WorkerLostError, where=PROCESS, costs=0.3)
def exits_well(x: Any) -> Any:
    os._exit(0)


@fault(pn.WorkerLostError, "7", where=PROCESS, costs=0.3)
def exits_badly(x: Any) -> Any:
    os._exit(7)


@fault(pn.WorkerLostError, "signal 9", where=PROCESS, costs=0.3)
def is_killed(x: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    hang()


@fault(pn.WorkerLostError, "signal 11", where=PROCESS, costs=0.3)
def reads_address_zero(x: Any) -> Any:
    return ctypes.string_at(0)


@fault(pn.WorkerLostError, "signal 6", where=PROCESS, costs=0.3)
def aborts(x: Any) -> Any:
    os.abort()


@fault(pn.WorkerLostError, where=PROCESS, costs=0.3)
def terminates(x: Any) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    hang()


@fault(pn.WorkerLostError, "signal 14", where=PROCESS, costs=0.3)
def sets_an_alarm(x: Any) -> Any:
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    hang()


@fault(pn.WorkerLostError, where=PROCESS, costs=0.3)
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


@fault(pn.TermError, "raised MemoryError", where=PROCESS, costs=0.2)
def exhausts_memory(x: Any) -> Any:
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        _allocate_beyond(64 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
