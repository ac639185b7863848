"""The process between the caller and its workers: `python -m penalties.execution.broker`.

It runs Pebble's pool, whose workers are forked from a server of the broker's own: so the caller's script is not
imported again, the caller's own fork server is left alone, and nothing with threads, CUDA or JAX in it is ever forked.
Pebble starts, watches and replaces the workers; each connects to the caller, which sends it one task after another.
The broker reads its configuration from standard input, and ends with the caller, however that ends.
"""

import contextlib
import gc
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from functools import partial
from typing import Any, Final, NamedTuple

from . import worker

__all__ = ["ENDED", "LOST", "READY", "Broker", "Config", "main"]

READY: Final = b"!"
"""What the broker sends once it is there."""

ENDED: Final = struct.Struct("qq")
"""What it sends when a worker has ended: its number, and its exit status."""

LOST: Final = struct.Struct("qq")
"""What the caller sends when a worker is lost to it: its number, and that of its process."""

_LOOK: Final = 0.2
"""Seconds between looks at the caller."""

_ENDING: Final = 4.0
"""Seconds in which the pool is stopped in order; then everything is killed."""

_REPORT: Final = 0.3
"""Seconds in which Pebble says that a process has ended, unless its exit status is 0."""

_STARTING: Final = 10.0
"""Seconds in which a worker begins to serve, once others have: that takes 20 ms, unless the machine is overloaded."""


class Config(NamedTuple):
    """What the broker is started with."""

    folder: str
    address: str
    """The socket at which workers reach the caller."""
    connection: int
    """The descriptor of the broker's own connection to the caller."""
    workers: int
    preload: tuple[str, ...]
    """Modules that the server loads, so that its forks need not."""
    sys_path: tuple[str, ...]
    search_path: str | None
    """PYTHONPATH in the caller."""


class Broker:
    """The pool, whose every worker has one task of Pebble's that lasts as long as the worker: to serve the caller."""

    def __init__(self, config: Config, connection: socket.socket) -> None:
        """Nothing has started yet."""
        import pebble

        self.config = config
        self.connection = connection
        self.caller: int = os.getppid()
        self._numbers = itertools.count()
        self._serving: dict[int, Any] = {}
        """By the number of a worker: Pebble's future."""
        self._lost: dict[int, tuple[int, float]] = {}
        """By the number of a worker that the caller has lost: its process, and when that was."""
        self._added: dict[int, float] = {}
        """By the number of a worker that does not serve yet: when it was added."""
        self._served = False
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(config.preload))
        self.pool: Any = pebble.ProcessPool(config.workers, context=context)

    def serve(self) -> None:
        """Keep workers until the caller closes the connection, or is gone."""
        self.connection.sendall(READY)
        for _ in range(self.config.workers):
            self._add_worker()
        # A process that the caller forked may hold the other end of the connection open.
        while os.getppid() == self.caller:
            if multiprocessing.connection.wait([self.connection], _LOOK):
                message = self.connection.recv(LOST.size)
                if not message:
                    return
                number, pid = LOST.unpack(message)
                self._lost[number] = pid, time.monotonic()
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        for number, (pid, since) in list(self._lost.items()):
            future = self._serving.get(number)
            if future is None:
                del self._lost[number]
            elif _kill(pid):
                self._lost[number] = pid, now
            elif now - since > _REPORT:
                self._report(number, 0)
                # Or it has left our group, as daemons do: then Pebble kills it.
                future.cancel()
        for number, future in list(self._serving.items()):
            if future.running():
                self._added.pop(number, None)
                self._served = True
        if self._served and any(now - since > _STARTING for since in list(self._added.values())):
            # As where somebody removed the locks that a process needs to start.
            self._give_up()

    def _add_worker(self) -> None:
        number = next(self._numbers)
        arguments = (self.config.address, number, self.config.search_path)
        try:
            self._added[number] = time.monotonic()
            self._serving[number] = future = self.pool.schedule(worker.serve, arguments)
        except RuntimeError:
            self._give_up()
        else:
            future.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, future: Any) -> None:
        """In a thread of Pebble's: a worker has ended."""
        if future.cancelled():
            return
        code = getattr(future.exception(), "exitcode", None)
        if code is None:
            # It could not be set up; or Pebble gives up, as where a process dies before any has begun to serve.
            self._give_up()
        else:
            self._report(number, code)

    def _report(self, number: int, code: int) -> None:
        """Tell the caller how a worker ended, once, and start another."""
        if self._serving.pop(number, None) is not None:
            self._added.pop(number, None)
            with contextlib.suppress(OSError):
                self.connection.sendall(ENDED.pack(number, code))
            self._add_worker()

    def _give_up(self) -> None:
        """End this broker: the caller starts another."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Kill the workers, and end this process with everything that it has started."""
        threading.Timer(_ENDING, _kill_group).start()
        self.pool.stop()
        for child in multiprocessing.active_children():
            child.kill()
        self.pool.join()
        self.pool = None
        # Pebble's locks are files; they go when nothing refers to them.
        gc.collect()
        if os.getppid() != self.caller:
            # It was killed. Else it may go on with another broker, and removes the files itself.
            shutil.rmtree(self.config.folder, ignore_errors=True)
        _kill_group()


def _kill(pid: int) -> bool:
    """Kill a process that is one of ours, if it is still there: the caller cannot reach it."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == os.getpgrp():
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _kill_group() -> None:
    """Workers, their server, and processes that terms started and left behind."""
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serve one caller."""
    config = Config(*pickle.load(sys.stdin.buffer))
    sys.path[:] = config.sys_path
    os.set_inheritable(config.connection, False)
    broker = Broker(config, socket.socket(fileno=config.connection))
    try:
        broker.serve()
    finally:
        broker.end()


if __name__ == "__main__":
    main()
