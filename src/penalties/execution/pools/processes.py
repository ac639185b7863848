"""Terms in processes: for those that hold the interpreter's lock, hang or crash."""

import contextlib
import importlib
import itertools
import os
import pickle
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Final

from ...errors import MissingLibraryError, TermError, TermTimeoutError, said
from ..slots import START, Slot, size_of
from ..task import Task
from ..worker import Outcome, reply_name
from .brokered import Brokered, Connected, exists
from .workers import LOADING, RemoteTask, Worker, WorkerPool

__all__ = ["Processes"]

_SHARED: Final = "/dev/shm"
"""Where files are in memory, on Linux."""

_ROOM: Final = 16 * 1024
"""Bytes that a slot has for a result beside the gradient: metrics, state, errors."""

_LOOK: Final = 0.05
"""Seconds between looks at a task whose function is being loaded."""

_ALIVE: Final = 0.5
"""Seconds between looks at a worker that evaluates a term, whose end may not be seen at its connection."""


class Processes(WorkerPool):
    """Worker processes that a broker starts."""

    def __init__(self, max_workers: int) -> None:
        """Workers start with the first term."""
        super().__init__(max_workers)
        above = _SHARED if os.access(_SHARED, os.W_OK) else None
        self.folder: str = tempfile.mkdtemp(prefix=f"penalties-{os.getpid()}-", dir=above)
        """For the files that tasks travel in."""
        self.names: Iterator[int] = itertools.count()
        self._broker: Brokered | None = None
        self._starting = threading.Lock()

    def new_worker(self) -> Worker:
        """A worker without a process."""
        return _ProcessWorker(self)

    def why_none(self, error: Exception) -> str:
        """The message where no process can be started."""
        return f"no worker could be started: {said(error)}"

    def start(self, task: Task) -> RemoteTask:
        """Queue it; a process begins as soon as one is free."""
        try:
            importlib.import_module("pebble")
        except ImportError as error:
            # The broker needs it; here it can be said what to install.
            raise MissingLibraryError('a term with runs="process"', "pebble", extra="process") from error
        return super().start(task)

    def broker(self) -> Brokered:
        """The broker; a new one where there is none."""
        with self._starting:
            broker = self._broker
            if broker is None or broker.ended:
                if broker is not None:
                    broker.close()
                self._broker = broker = Brokered(self.folder, self.max_workers)
            if self.closed:
                broker.close()
            return broker

    def close(self) -> None:
        """Kill every worker, and remove the files."""
        self.closed = True
        if self._broker is not None:
            self._broker.close()
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


class _ProcessWorker(Worker):
    """A process, and the slot that its tasks travel in."""

    def __init__(self, pool: Processes) -> None:
        super().__init__(pool, "penalties-process")
        self.processes = pool
        self._broker: Brokered | None = None
        self._connected: Connected | None = None
        self._slot: Slot | None = None
        self._sent: set[str] = set()
        """The functions that the process was sent."""

    def connect(self) -> None:
        self._disconnect()
        for last in (False, True):
            broker = self.processes.broker()
            try:
                connected = broker.accept()
            except RuntimeError:
                if last and not self.pool.closed:
                    raise
            else:
                with self.pool.changed:
                    self._broker, self._connected = broker, connected
                    self.alive = not self.pool.closed
                return

    def _disconnect(self) -> None:
        """Let go of a process that has ended."""
        if self._connected is not None:
            self._connected.connection.close()
            self._connected = None
        self._sent.clear()
        self._drop_slot()

    def kill(self) -> None:
        with self.pool.changed:
            alive = self.alive
            self.alive = False
            if alive and self._connected is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._connected.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        self._disconnect()

    def evaluate(self, running: RemoteTask) -> None:
        digest = running.function.digest
        body = None if digest in self._sent else running.function.body
        header = pickle.dumps((tuple(running.request), body))
        # The result comes after the task.
        start = START + size_of(header, running.packed.arrays)
        nbytes = start + running.gradient_bytes + _ROOM
        try:
            slot = self._slot_of(nbytes)
        except OSError as error:
            message = f"there is no room for {nbytes} bytes of shared memory: {said(error)}"
            running.fail(TermError(running.name, f"{message}; a container gets more with --shm-size"), error)
            return
        slot.reset_clock()
        slot.write(START, header, running.packed.arrays)
        try:
            answer = self._answer(running, slot)
        except TermTimeoutError as error:
            self.kill()
            running.fail(error)
            self._how_ended()
            return
        if not answer:
            self.alive = False
            began = slot.began > 0
            running.lose(self._how_ended(), began=began, counts=began or not self.used)
            return
        outcome = Outcome(answer[0])
        self.used = True
        if outcome == Outcome.UNKNOWN:
            self._sent.discard(digest)
            self.evaluate(running)
        elif outcome == Outcome.FAILED:
            message = f"could not be evaluated in a worker: {answer[1:].decode(errors='replace')}"
            running.fail(TermError(running.name, message))
        else:
            self._sent.add(digest)
            if outcome == Outcome.DONE_BESIDE:
                slot, start = Slot(self.processes.folder, reply_name(slot.name)), START
                slot.unlink()
            data, arrays, _ = slot.read(start)
            running.settle(data, arrays)
        if body is not None:
            # A function may hold a whole model.
            self._drop_slot()

    def _answer(self, running: RemoteTask, slot: Slot) -> bytes:
        """What the process answers; nothing where it has ended."""
        assert self._connected is not None, "alive"
        connection, _, pid = self._connected
        sent, patience = time.monotonic(), running.timeout
        with contextlib.suppress(OSError):
            connection.sendall(slot.name.encode())
        while True:
            connection.settimeout(min(patience, _ALIVE))
            try:
                return connection.recv(2000)
            except TimeoutError:
                # This thread may have been held up itself, and the answer may have come in time.
                if select.select([connection], [], [], 0)[0]:
                    continue
                patience = _patience(running, slot, sent)
                # What a term forked may hold the connection open.
                if not exists(pid):
                    return b""
            except OSError:
                return b""

    def _how_ended(self) -> str:
        if self.pool.closed:
            return ""
        assert self._broker is not None, "it was alive"
        assert self._connected is not None, "it was alive"
        return self._broker.how_ended(self._connected.number)

    def _slot_of(self, nbytes: int) -> Slot:
        if self._slot is None or len(self._slot) < nbytes:
            self._drop_slot()
            self._slot = Slot(self.processes.folder, f"slot-{next(self.processes.names)}", nbytes)
        return self._slot

    def _drop_slot(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.unlink()


def _patience(running: RemoteTask, slot: Slot, sent: float) -> float:
    """Seconds to wait before the next look; raises where the task is late."""
    began, now = slot.began, time.monotonic()
    if began and now - began >= running.timeout:
        raise TermTimeoutError(running.name, f"took more than {running.timeout:g} s; its process was killed")
    if not began and now - sent > LOADING:
        raise TermTimeoutError(running.name, f"was not loaded within {LOADING:g} s; its process was killed")
    return began + running.timeout - now if began else _LOOK
