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
from functools import partial
from typing import Any, Final, NamedTuple

from . import worker

__all__ = ["ENDED", "LOST", "READY", "Broker", "Config", "main"]

READY: Final = b"!"
"""What the broker sends once it is there."""

ENDED: Final = struct.Struct("qq")
"""What it sends when a worker has ended: its number, and its exit status."""

LOST: Final = struct.Struct("q")
"""What the caller sends when a worker has ended and the broker has not said so: its number."""

_LOOK: Final = 0.2
"""Seconds between looks at the caller."""

_ENDING: Final = 8.0
"""Seconds in which the pool is stopped in order; then everything is killed."""


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
                # Pebble says nothing of a worker that exits with status 0.
                self._replace(*LOST.unpack(message))

    def _add_worker(self) -> None:
        number = next(self._numbers)
        arguments = (self.config.folder, self.config.address, number, self.config.search_path)
        try:
            self._serving[number] = future = self.pool.schedule(worker.serve, arguments)
        except RuntimeError:
            self._give_up()
        else:
            future.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, future: Any) -> None:
        """In a thread of Pebble's: a worker has ended."""
        code = getattr(future.exception(), "exitcode", None)
        if code is None:
            # Pebble gives up on the whole pool where a worker dies before any has begun to serve.
            self._give_up()
        else:
            with contextlib.suppress(OSError):
                self.connection.sendall(ENDED.pack(number, code))
            self._replace(number)

    def _replace(self, number: int) -> None:
        if self._serving.pop(number, None) is not None:
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
