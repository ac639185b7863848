"""Terms in processes: for those that hold the interpreter's lock, hang or crash."""

import contextlib
import importlib
import os
import pickle
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from typing import Final

from ... import trees
from ...errors import MissingLibraryError, TermError, TermTimeoutError, WorkerLostError, said
from ...pipeline.evaluation import Evaluation
from ..functions import Function, Functions
from ..remote import opened, request_of
from ..slots import START, Slot, Slots, read, size_of, write
from ..task import Task
from ..worker import Outcome, function_path, reply_name
from .brokered import Answer, Brokered, Submitted

__all__ = ["Processes", "RunningProcess"]

_CLOSED: Final = "the executor was closed before it was done"

_SHARED: Final = "/dev/shm"
"""Where files are in memory, on Linux."""

_ROOM: Final = 16 * 1024
"""Bytes that a slot has for a result beside the gradient: metrics, state, errors."""

_LOOK: Final = 0.05
"""Seconds between looks at a task that has not begun."""

_LOADING: Final = 300.0
"""Seconds that a worker may take to load a function: imports can be slow, but must not hang the caller."""

_WRITTEN: Final = 512
"""Functions whose files are kept."""


class Processes:
    """Worker processes behind a broker. One that is late or crashes is replaced, and its neighbours live on."""

    def __init__(self, max_workers: int) -> None:
        """Workers start with the first term."""
        self.max_workers = max_workers
        self.closed: bool = False
        self.functions: Functions = Functions()
        self._lock = threading.Lock()
        self._broker: Brokered | None = None
        above = _SHARED if os.access(_SHARED, os.W_OK) else None
        self.slots: Slots = Slots(tempfile.mkdtemp(prefix=f"penalties-{os.getpid()}-", dir=above))
        """The files that tasks travel in."""
        self._written: OrderedDict[str, None] = OrderedDict()

    def start(self, task: Task) -> "RunningProcess":
        """Send it to the broker, where it begins as soon as a worker is free."""
        return RunningProcess(self, task)

    def broker(self, term: str) -> Brokered:
        """The broker; a new one where there is none."""
        with self._lock:
            self._check_open(term)
            if self._broker is None or self._broker.closed:
                _check_pebble()
                try:
                    self._broker = Brokered(self.slots.folder, self.max_workers)
                except (RuntimeError, OSError) as error:
                    raise WorkerLostError(term, f"no worker could be started: {said(error)}") from error
            return self._broker

    def _check_open(self, term: str) -> None:
        if self.closed:
            raise TermError(term, _CLOSED)

    def publish(self, function: Function, term: str, *, again: bool = False) -> None:
        """Write a function where workers find it, unless that was done before."""
        folder = self.slots.folder
        with self._lock:
            self._check_open(term)
            if function.digest in self._written and not again:
                self._written.move_to_end(function.digest)
                return
            path = function_path(folder, function.digest)
            with open(f"{path}.new", "wb") as file:
                file.write(function.body)
            os.replace(f"{path}.new", path)
            self._written[function.digest] = None
            if len(self._written) > _WRITTEN:
                oldest, _ = self._written.popitem(last=False)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(function_path(folder, oldest))

    def close(self) -> None:
        """Kill every worker, and remove the files."""
        with self._lock:
            self.closed = True
            broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()
        shutil.rmtree(self.slots.folder, ignore_errors=True)


def _check_pebble() -> None:
    """The broker needs it; here it can be said what to install."""
    try:
        importlib.import_module("pebble")
    except ImportError as error:
        raise MissingLibraryError('a term with runs="process"', "pebble", extra="process") from error


class RunningProcess:
    """A task for a worker."""

    def __init__(self, pool: Processes, task: Task) -> None:
        """Send it."""
        self.pool = pool
        self.name: str = task.term.name
        self._task = task
        self._function = pool.functions.of(task.term)
        self._lock = threading.Lock()
        self._slot: Slot | None = None
        self._cancelled = False
        self._retried = False
        self._sendings = 0
        pool.publish(self._function, self.name)
        self._send()

    def _send(self) -> None:
        """Write the task into a slot, and submit it."""
        request, packed = request_of(self._task, self._function.digest)
        header = pickle.dumps(tuple(request))
        # The result comes after the task; a gradient is as large as the inputs that it is taken at.
        self._start = START + size_of(header, packed.arrays)
        gradient = sum(array.nbytes for name in self._task.wrt for array in trees.arrays(self._task.inputs[name]))
        nbytes = self._start + gradient + _ROOM
        try:
            self._slot = self.pool.slots.take(nbytes)
        except OSError as error:
            if self.pool.closed:
                raise TermError(self.name, _CLOSED) from error
            message = f"there is no room for {nbytes} bytes of shared memory: {said(error)}"
            raise TermError(self.name, f"{message}; a container gets more with --shm-size") from error
        write(self._slot.memory, START, header, packed.arrays)
        self._submit()

    def _submit(self) -> None:
        assert self._slot is not None, "the task is in it"
        try:
            self._broker: Brokered = self.pool.broker(self.name)
            self._submitted: Submitted = self._broker.submit(self._slot)
        except BaseException as error:
            self._drop_slot()
            # Ctrl-C while the broker starts is the user's, and not a failure of the term.
            if isinstance(error, TermError | MissingLibraryError) or not isinstance(error, Exception):
                raise
            raise WorkerLostError(self.name, f"no worker could be started: {said(error)}") from error
        if self._cancelled:
            self._broker.cancel(self._submitted)

    def result(self) -> Evaluation:
        """Wait until it is done, late or lost."""
        try:
            answer = self._answer()
            evaluation = self._read(answer)
        except BaseException:
            self._drop_slot()
            raise
        with self._lock:
            slot, self._slot = self._slot, None
        if slot is not None:
            self.pool.slots.give(slot)
        return evaluation

    def cancel(self) -> None:
        """Kill its worker, or never begin."""
        self._cancelled = True
        self._broker.cancel(self._submitted)
        self._drop_slot()

    def _drop_slot(self) -> None:
        """Remove the slot: a worker that is not done may still write to it."""
        with self._lock:
            slot, self._slot = self._slot, None
        if slot is not None:
            slot.unlink()

    def _answer(self) -> Answer:
        """The answer to the task once its result is there; raises where there will be none."""
        patience = self._task.timeout
        while True:
            try:
                answer = self._submitted.answer.result(min(patience, 1.0))
            except TimeoutError:
                patience = self._patience()
                continue
            patience = self._task.timeout
            if self._cancelled or answer.outcome == Outcome.CANCELLED:
                raise TermError(self.name, "was cancelled")
            if answer.outcome == Outcome.LOST:
                self._send_again(answer)
            elif answer.outcome == Outcome.UNKNOWN:
                self.pool.publish(self._function, self.name, again=True)
                self._submit()
            elif answer.outcome == Outcome.FAILED:
                raise TermError(self.name, f"could not be evaluated in a worker: {answer.detail}")
            else:
                return answer

    def _patience(self) -> float:
        """Seconds to wait before the next look; raises where the task is late."""
        timeout, now = self._task.timeout, time.monotonic()
        if self.pool.closed:
            raise TermError(self.name, _CLOSED)
        submitted = self._submitted
        if began := submitted.slot.began:
            left = began + timeout - now
            if left > 0:
                return left
            message = f"took more than {timeout:g} s; its process was killed"
        elif submitted.sent and now - submitted.sent > _LOADING:
            message = f"was not loaded within {_LOADING:g} s; its process was killed"
        else:
            return _LOOK
        if self._broker.cancel(submitted):
            raise TermTimeoutError(self.name, message)
        # The answer is on its way.
        return _LOOK

    def _send_again(self, answer: Answer) -> None:
        """Send a task that was lost once more, where that does no harm; else raise."""
        if self.pool.closed:
            raise TermError(self.name, _CLOSED)
        idempotent = self._task.term.idempotent
        # One that had not begun may be sent to every worker in turn: all may have died while they were idle.
        self._sendings += 1
        if self._sendings > self.pool.max_workers + 1 or (answer.began and (self._retried or not idempotent)):
            again = " twice" if self._retried and idempotent else ""
            hint = "" if idempotent else "; idempotent=True lets it run again"
            raise WorkerLostError(self.name, f"{answer.detail}{again}{hint}")
        self._retried = self._retried or answer.began
        self._drop_slot()
        self._send()

    def _read(self, answer: Answer) -> Evaluation:
        with self._lock:
            slot = self._slot
        if slot is None:
            raise TermError(self.name, "was cancelled")
        start = self._start
        if answer.outcome == Outcome.DONE_BESIDE:
            slot, start = Slot(self.pool.slots.folder, reply_name(slot.name)), START
            slot.unlink()
        data, arrays, _ = read(slot.memory, start)
        return opened(self.name, data, arrays)
