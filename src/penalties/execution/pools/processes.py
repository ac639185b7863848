"""Terms in processes: for those that hold the interpreter's lock, hang or crash."""

import contextlib
import errno
import importlib
import os
import pickle
import signal
import threading
import time
from typing import Any, Final

from ...errors import MissingLibraryError, TermError, TermTimeoutError, said
from ..messages import Answer, Kind
from ..slots import Slot, size_of
from ..task import Task
from .brokered import Brokered
from .connected import NO_ANSWER, Connected, GoneError, exists
from .workers import LOADING, RemoteTask, Worker, WorkerPool

__all__ = ["Processes"]

_ROOM: Final = 16 * 1024
"""Bytes that a slot has for a result beside the gradient: metrics, state, errors."""

_ALIVE: Final = 0.5
"""Seconds between looks at a worker that evaluates a term, whose end may not be seen at its connection."""

_TAKING: Final = (1.0, 5.0)
"""Seconds in which a worker takes a task, at least and at most: else it was stopped, or is held up. In between, as long
as the term may take."""


class Processes(WorkerPool):
    """Worker processes that a broker starts."""

    def __init__(self, max_workers: int, streams: tuple[int, int] | None = None) -> None:
        """Workers start with the first term, with these descriptors as standard output and error, or the caller's."""
        super().__init__(max_workers)
        self._streams = streams
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
                self._broker = broker = Brokered(self.max_workers, self._streams)
            if self.closed:
                broker.close()
            return broker

    def close(self) -> None:
        """Kill every worker."""
        self.closed = True
        if self._broker is not None:
            self._broker.close()
        super().close()


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
            self._connected.close()
            self._connected = None
        self._sent.clear()
        self._drop_slot()

    def kill(self) -> None:
        with self.pool.changed:
            alive = self.alive
            self.alive = False
            if alive and self._connected is not None:
                # It may be gone, and its number another's.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self._connected.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        self._disconnect()

    def evaluate(self, running: RemoteTask) -> None:
        assert self._connected is not None, "alive"
        digest = running.function.digest
        body = None if digest in self._sent else running.function.body
        header = pickle.dumps((tuple(running.request), body))
        # The result comes after the task.
        start = size_of(header, running.packed.arrays)
        exchange = _Exchange(self._connected, running)
        try:
            slot = self._slot_of(running.name, start + running.gradient_bytes + _ROOM)
            slot.write(0, header, running.packed.arrays)
            answer = exchange.answer(slot)
            if answer.kind == Kind.UNKNOWN and body is not None:
                raise GoneError("its worker did not load its function")
            result = exchange.result(slot, start) if answer.kind == Kind.DONE else None
        except TermError as error:
            if exchange.sent:
                self.kill()
            running.fail(error, error.__cause__)
            if exchange.sent:
                self._how_ended()
            return
        except GoneError as error:
            self.alive = False
            how = self._how_ended()
            running.lose(str(error) or how, began=exchange.began, counts=exchange.began or not self.used)
            return
        self.used = True
        self.alive = not answer.last
        self._sent.add(digest)
        if body is not None:
            # A function may hold a whole model.
            self._drop_slot()
        if answer.kind == Kind.UNKNOWN:
            self._sent.discard(digest)
            self.evaluate(running)
        elif result is None:
            running.fail(TermError(running.name, f"could not be evaluated in a worker: {answer.why}"))
        else:
            running.settle(*result)
        if answer.last:
            self._how_ended()

    def _how_ended(self) -> str:
        if self.pool.closed:
            return ""
        assert self._broker is not None, "it was alive"
        assert self._connected is not None, "it was alive"
        return self._broker.how_ended(self._connected)

    def _slot_of(self, name: str, nbytes: int) -> Slot:
        if self._slot is None or len(self._slot) < nbytes:
            self._drop_slot()
            self._slot = _new_slot(name, nbytes)
        return self._slot

    def _drop_slot(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.close()


class _Exchange:
    """A task that is sent, and what comes of it."""

    def __init__(self, connected: Connected, running: RemoteTask) -> None:
        self.sent: bool = False
        self.began: bool = False
        """Whether its function has begun to run."""
        self._connected = connected
        self._running = running
        self._room: Slot | None = None
        """For a result that does not fit into the slot."""

    def answer(self, slot: Slot) -> Answer:
        """Send it, and wait for its end; raises `TermTimeoutError` where it is late, and `GoneError`."""
        shortest, longest = _TAKING
        deadline = time.monotonic() + min(max(self._running.timeout, shortest), longest)
        late: Exception = GoneError("its worker did not accept it")
        before = 0
        self.sent = True
        self._connected.send(slot)
        while True:
            answer = self._connected.answer(min(deadline - time.monotonic(), _ALIVE))
            if answer is None:
                if time.monotonic() >= deadline:
                    raise late
                # What a term forked may hold the connection open.
                if not exists(self._connected.pid):
                    raise GoneError
                continue
            if answer.kind <= before:
                # Each is sent once, in the order of their numbers: one that came again and again would be waited for
                # for ever.
                raise GoneError(NO_ANSWER)
            before = answer.kind
            if answer.kind == Kind.TAKEN:
                deadline, late = time.monotonic() + LOADING, self._late(f"was not loaded within {LOADING:g} s")
            elif answer.kind == Kind.BEGAN:
                timeout = self._running.timeout
                self.began = True
                deadline, late = time.monotonic() + timeout, self._late(f"took more than {timeout:g} s")
            elif answer.kind == Kind.MORE:
                self._room = _new_slot(self._running.name, answer.nbytes)
                self._connected.offer(self._room)
            else:
                return answer

    def _late(self, how: str) -> TermTimeoutError:
        return TermTimeoutError(self._running.name, f"{how}; its process was killed")

    def result(self, slot: Slot, start: int) -> tuple[bytes, list[Any]]:
        """What the worker has written, copied."""
        room, offset = (slot, start) if self._room is None else (self._room, 0)
        try:
            return room.read(offset)[:2]
        except (TypeError, ValueError, MemoryError) as error:
            raise GoneError("its worker wrote an invalid result") from error
        finally:
            if self._room is not None:
                self._room.close()


def _new_slot(name: str, nbytes: int) -> Slot:
    try:
        return Slot.of_size(nbytes)
    except (OSError, MemoryError, OverflowError) as error:
        hint = "; a container gets more with --shm-size" if getattr(error, "errno", None) == errno.ENOSPC else ""
        raise TermError(name, f"there is no room for {nbytes} bytes of shared memory: {said(error)}{hint}") from error
