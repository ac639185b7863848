"""Terms that hang."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from typing import Any

import penalties as pn

from .fault import LATE, PROCESS, fault, hang, released, squares


@fault(pn.TermTimeoutError, where=("thread", "process"), timeout=LATE, costs=0.5)
def hangs(x: Any) -> Any:
    hang()
    return squares(x)


@fault(pn.TermTimeoutError, where=("thread", "process"), timeout=LATE, costs=0.5)
def spins(x: Any) -> Any:
    end = time.monotonic() + 60
    while not released.is_set() and time.monotonic() < end:
        # Polite in the caller's process, where an abandoned one takes time from all that follow.
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.001)
    return squares(x)


@fault(pn.TermTimeoutError, "was cancelled", where=("async",), timeout=LATE, costs=0.3)
async def waits(x: Any) -> Any:
    await asyncio.sleep(60)
    return squares(x)


@fault(pn.TermTimeoutError, "still runs", where=("async",), timeout=LATE, costs=0.8)
async def waits_and_ignores_cancelling(x: Any) -> Any:
    while not released.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
    return squares(x)


@fault(pn.TermTimeoutError, "still runs", where=("async",), timeout=LATE, costs=0.8)
async def blocks_the_loop(x: Any) -> Any:
    hang()
    return squares(x)


@fault(pn.TermTimeoutError, where=PROCESS, timeout=LATE, costs=0.6)
def holds_the_lock(x: Any) -> Any:
    # One call of C code, which no signal handler of Python's interrupts.
    return sum(range(10**11)) * squares(x)


@fault(pn.TermTimeoutError, where=PROCESS, timeout=LATE, costs=0.6)
def ignores_termination(x: Any) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang()
    return squares(x)


@fault(pn.TermTimeoutError, where=PROCESS, timeout=LATE, costs=0.6)
def stops_itself(x: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)
    return squares(x)


@fault(pn.TermTimeoutError, where=PROCESS, timeout=2.5, costs=3.0, ray=False)
def hangs_in_an_executor(x: Any) -> Any:
    with pn.Executor(max_workers=1) as executor:
        return executor.run(pn.Pipeline([pn.Term(hangs, runs="thread", timeout=60)]), {"x": x}).total
