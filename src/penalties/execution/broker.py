"""The process between the caller and its workers: `python -m penalties.execution.broker`.

It runs Pebble's pool, whose workers are forked from a server of the broker's own: so the caller's script is not
imported again, the caller's own fork server is left alone, and nothing with threads, CUDA or JAX in it is ever forked.
It reads its configuration from standard input, listens on a socket, and ends with the caller, however that ends.

Tasks and results are in mapped files. The messages that pass through here and through the workers' pipes are a few
bytes each, which a pipe takes whole or not at all: a worker killed at any moment leaves no half message behind.
"""

import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import os
import pickle
import shutil
import signal
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, Final, NamedTuple

from . import worker
from .board import Board, State

__all__ = ["Answer", "Broker", "Config", "main"]

_LOOK: Final = 0.2
"""Seconds between looks at the caller and at the workers."""

_STARTING: Final = 60.0
"""Seconds without a worker that takes a task before the pool is replaced."""

_ENDING: Final = 8.0
"""Seconds in which the pool is stopped in order; then everything is killed."""


class Config(NamedTuple):
    """What the broker is started with."""

    folder: str
    address: str
    key: bytes
    """Who does not know it is not connected."""
    board: str
    workers: int
    preload: tuple[str, ...]
    """Modules that the server loads, so that its forks need not."""
    sys_path: tuple[str, ...]
    search_path: str | None
    """PYTHONPATH in the caller."""


class Answer(NamedTuple):
    """The one answer to a task."""

    task: int
    outcome: State
    detail: str = ""
    began: bool = False
    """Whether the function had begun to run."""


class Broker:
    """The pool, and the tasks that it has."""

    def __init__(self, config: Config, connection: Any) -> None:
        """Workers start with the first task."""
        self.config = config
        self.connection = connection
        self.board: Board = Board(config.board)
        self.tasks: dict[int, tuple[int, Any]] = {}
        """By number: the line on the board, and Pebble's future."""
        self._sending = threading.Lock()
        self._ending = threading.Lock()
        self._over: set[int] = set()
        """Tasks that were over at the last look, and had not been answered."""
        self._codes: dict[int, int] = {}
        """Exit statuses of workers that Pebble told about another task."""
        self._waiting_since = time.monotonic()
        self.pool: Any = self._new_pool()

    def _new_pool(self) -> Any:
        import pebble

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(self.config.preload))
        arguments = (self.config.folder, self.config.board, self.config.search_path)
        return pebble.ProcessPool(self.config.workers, initializer=worker.begin, initargs=arguments, context=context)

    def serve(self) -> None:
        """Take tasks until the caller closes the connection, or is gone."""
        threading.Thread(target=self._watch, args=(os.getppid(),), daemon=True).start()
        with contextlib.suppress(EOFError, OSError):
            while (message := self.connection.recv()) is not None:
                task, entry, slot = message
                if slot is None:
                    self.cancel(task, entry)
                else:
                    self.schedule(task, entry, slot)

    def schedule(self, task: int, entry: int, slot: str) -> None:
        """Give a task to the pool."""
        try:
            future = self._scheduled(task, entry, slot)
        except RuntimeError as error:
            self.answer(Answer(task, State.LOST, f"no worker could be started: {error}"))
            return
        self.tasks[task] = (entry, future)
        future.add_done_callback(partial(self._finished, task))

    def _scheduled(self, *arguments: Any) -> Any:
        try:
            return self.pool.schedule(worker.run, arguments)
        except RuntimeError:
            # It broke while it had nothing to do.
            self._replace_pool()
            return self.pool.schedule(worker.run, arguments)

    def cancel(self, task: int, entry: int) -> None:
        """Never begin it, or kill its worker."""
        if self.tasks.pop(task, None) is not None:
            self.board.cancel(entry, task)
            self.answer(Answer(task, State.CANCELLED))

    def _finished(self, task: int, future: Any) -> None:
        """In a thread of Pebble's."""
        entry, known = self.tasks.get(task, (0, None))
        if known is None or future.cancelled():
            return
        error, line = future.exception(), self.board.read(entry)
        code = getattr(error, "exitcode", None)
        if error is None:
            self._settle(task)
        elif code is not None:
            if line.state.over:
                # The worker died of its next task, before Pebble had read the result of this one.
                self._codes[line.pid] = code
            self._settle(task, _how(code))
        elif not isinstance(error, BrokenProcessPool):
            self._settle(task, f"{type(error).__name__}: {error}", State.FAILED)
        elif line.state == State.QUEUED:
            self._settle(task, "the worker pool broke")
        # Pebble gives up on a whole pool, whose workers may be well: what they have begun is watched to its end.

    def _settle(self, task: int, how: str = "", otherwise: State = State.LOST) -> None:
        """Answer for a task: with its result where the board has it, else by how it was lost or failed."""
        entry, future = self.tasks.pop(task, (0, None))
        if future is None:
            return
        state = self.board.read(entry).state
        if state.over:
            self.answer(Answer(task, state))
            return
        if state == State.QUEUED:
            # It may be sent again: a worker that still finds this one must not begin.
            self.board.cancel(entry, task)
        self.answer(Answer(task, otherwise, how, self.board.read(entry).began > 0))

    def answer(self, answer: Answer) -> None:
        """Tell the caller, unless it is gone."""
        with self._sending, contextlib.suppress(OSError):
            self.connection.send(tuple(answer))

    def _watch(self, caller: int) -> None:
        """See to what neither Pebble nor the connection tells."""
        while os.getppid() == caller:
            time.sleep(_LOOK)
            self._look()
        # A process that the caller forked may hold the other end of the connection open.
        self.end()

    def _look(self) -> None:
        """Answer for tasks of which Pebble says nothing: one whose worker exits with status 0, for example."""
        over: set[int] = set()
        waiting: list[int] = []
        tasks = list(self.tasks.items())
        for task, (entry, future) in tasks:
            line = self.board.read(entry)
            gone = line.state == State.RUNNING and not _exists(line.pid)
            if line.state == State.QUEUED:
                waiting.append(task)
            elif gone or line.state.over:
                over.add(task)
                # At the second look: by then Pebble would have said it.
                if task in self._over:
                    self._settle(task, _how(self._codes.pop(line.pid, None)))
                    if gone:
                        future.cancel()
        self._over = over
        now = time.monotonic()
        if len(waiting) < len(tasks) or not tasks:
            self._waiting_since = now
        elif now - self._waiting_since > _STARTING:
            self._waiting_since = now
            self._replace_pool()
            for task in waiting:
                self._settle(task, f"no worker took it within {_STARTING:g} s")

    def _replace_pool(self) -> None:
        broken, self.pool = self.pool, self._new_pool()
        threading.Thread(target=self._retire, args=(broken, set(self.tasks)), daemon=True).start()

    def _retire(self, pool: Any, tasks: set[int]) -> None:
        """Stop a pool once its tasks are answered."""
        while not tasks.isdisjoint(list(self.tasks)):
            time.sleep(_LOOK)
        _stop(pool)

    def end(self) -> None:
        """Kill the workers, remove the files, and end this process with everything that it has started."""
        # Once, and never released: the caller's end may be seen here and by the connection.
        self._ending.acquire()
        threading.Timer(_ENDING, _kill_group).start()
        for child in multiprocessing.active_children():
            child.kill()
        _stop(self.pool)
        self.pool = None
        # Pebble's locks are files; they go when nothing refers to them.
        gc.collect()
        shutil.rmtree(self.config.folder, ignore_errors=True)
        _kill_group()


def _stop(pool: Any) -> None:
    pool.stop()
    pool.join()


def _kill_group() -> None:
    """Workers, their server, and processes that terms started and left behind."""
    os.killpg(0, signal.SIGKILL)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _how(code: int | None) -> str:
    if code is None:
        return "its process died"
    return f"its process died ({f'killed by signal {-code}' if code < 0 else f'exit status {code}'})"


def main() -> None:
    """Serve one caller."""
    config = Config(*pickle.load(sys.stdin.buffer))
    sys.path[:] = config.sys_path
    with multiprocessing.connection.Listener(config.address, "AF_UNIX", authkey=config.key) as listener:
        connection = listener.accept()
    broker = Broker(config, connection)
    try:
        broker.serve()
    finally:
        broker.end()


if __name__ == "__main__":
    main()
