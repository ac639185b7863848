"""Terms that do what they should not, and are well all the same."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np

import penalties as pn

from .fault import CHATTER, FORKABLE, PROCESS, awaited, brought, fault, squares


@fault(None, where=PROCESS, costs=0.1, libraries=FORKABLE)
def forks_and_returns_twice(x: Any) -> Any:
    _fork()
    return squares(x)


@fault(None, where=PROCESS, costs=0.1, libraries=FORKABLE)
def forks_and_exits(x: Any) -> Any:
    child = _fork()
    if child == 0:
        os._exit(3)
    os.waitpid(child, 0)
    return squares(x)


@fault(None, where=PROCESS, costs=0.1, libraries=FORKABLE)
def forks_and_raises(x: Any) -> Any:
    child = _fork()
    if child == 0:
        raise ValueError("in the child")
    os.waitpid(child, 0)
    return squares(x)


@fault(None, where=PROCESS, costs=0.1, libraries=FORKABLE)
def forks_and_leaves(x: Any) -> Any:
    child = _fork()
    if child == 0:
        sys.exit(5)
    os.waitpid(child, 0)
    return squares(x)


def _fork() -> int:
    with warnings.catch_warnings():
        # JAX, where an earlier term has loaded it, warns that its threads are not forked.
        warnings.simplefilter("ignore")
        return os.fork()


@fault(None)
def prints_a_lot(x: Any) -> Any:
    for _ in range(100):
        print(CHATTER * 100)
    return squares(x)


@fault(None)
def starts_threads(x: Any) -> Any:
    for _ in range(5):
        threading.Thread(target=time.sleep, args=(0.05,), name="of-the-term").start()
    return squares(x)


@fault(None, where=PROCESS)
def starts_an_endless_thread(x: Any) -> Any:
    threading.Thread(target=time.sleep, args=(600,)).start()
    return squares(x)


@fault(None, costs=0.05)
def starts_a_program(x: Any) -> Any:
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    return squares(x)


@fault(None, where=PROCESS, alone=True)
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


@fault(None, where=PROCESS, libraries=("numpy", "torch"))
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
    return brought(x, inner(x=x).total, 2 * x)


@fault(None, costs=0.05)
def runs_an_executor(x: Any) -> Any:
    inner = pn.Pipeline([pn.Term(squares, 0.5, runs="thread"), pn.Term(awaited(squares), 0.5, name="again")])
    with pn.Executor(max_workers=1) as executor:
        return brought(x, executor.run(inner, {"x": x}).total, 2 * x)


@fault(None, where=PROCESS, costs=3.0, ray=False)
def runs_processes(x: Any) -> Any:
    with pn.Executor(max_workers=1) as executor:
        return brought(x, executor.run(pn.Pipeline([pn.Term(squares, runs="process")]), {"x": x}).total, 2 * x)


@fault(None, where=("thread", "process"))
async def is_awaited_elsewhere(x: Any) -> Any:
    await asyncio.sleep(0.001)
    return squares(x)


@fault(pn.TermError, "raised ", where=("async",))
async def stops_the_loop(x: Any) -> Any:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)
    return squares(x)
