"""Terms in processes: for those that hold the interpreter's lock, hang or crash."""

import os
import threading
import time
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Final

import numpy as np

from ...errors import TermError, TermTimeoutError, WorkerLostError, said
from ...pipeline.evaluation import Evaluation
from ...pipeline.inputs import arrays_in
from ...pipeline.term import Term
from ..blocks import LARGE, Blocks, Lent, Outlet, aligned, lay, read
from ..bodies import Bodies
from ..crew import Crew, Promise
from ..portable import Packed, dumps, loads
from ..task import Task
from ..worker import Failure, Reply, Request, settings_of

__all__ = ["Processes"]

_SLOTS: Final = 1024
"""Tasks that may be under way at once."""

_LOOK: Final = 0.05
"""Seconds between looks at a task that has not begun."""

_LOADING: Final = 300.0
"""Seconds that a worker may take to load a term: imports can be slow, and one that hangs must not hang the caller."""

_BROKEN: Final = (CancelledError, BrokenProcessPool, RuntimeError)
"""What a pool raises that no task of it survives."""


class Processes:
    """A crew of workers. One that is late or crashes is replaced, and its neighbours live on."""

    def __init__(self, max_workers: int) -> None:
        """Workers start with the first term."""
        self.max_workers = max_workers
        self.closed: bool = False
        self.blocks: Blocks = Blocks()
        self._lock = threading.Lock()
        self._bodies = Bodies()
        self._crew: Crew | None = None
        self._board: SharedMemory | None = None
        self._free = list(range(_SLOTS))

    def start(self, task: Task) -> "RunningProcess":
        """Send it to the crew, which begins as soon as a worker is free."""
        if self.closed:
            raise TermError(task.term.name, "the executor was closed before it began")
        key, body = self._bodies.of(task.term)
        running = RunningProcess(self, task, key, body)
        running.send()
        return running

    def schedule(self, request: Request) -> tuple[Crew, Promise]:
        """The crew, and the promise of a reply."""
        crew = self._working()
        try:
            return crew, crew.schedule(request)
        except RuntimeError:
            # It broke while nobody was looking.
            self.replace(crew)
        crew = self._working()
        return crew, crew.schedule(request)

    def _working(self) -> Crew:
        """The crew; a new one where there is none."""
        with self._lock:
            if self.closed:
                raise RuntimeError("closed")
            if self._crew is None:
                self._crew = Crew(self.max_workers, max(1, (os.cpu_count() or 1) // self.max_workers))
            return self._crew

    def replace(self, crew: Crew) -> None:
        """Give up on a crew that is broken; the next task starts another."""
        with self._lock:
            if self._crew is not crew:
                return
            self._crew = None
        crew.stop()

    def close(self) -> None:
        """Kill every worker, and remove the memory shared with them."""
        with self._lock:
            self.closed = True
            crew, self._crew = self._crew, None
        if crew is not None:
            crew.stop()
        self.blocks.close()

    def take_slot(self, term: str) -> int:
        """A place on the board where a worker says when it began, and who it is."""
        with self._lock:
            if self._board is None:
                self._board = self.blocks.take(_SLOTS * 24)
            if not self._free:
                raise TermError(term, f"more than {_SLOTS} tasks at once")
            slot = self._free.pop()
        self.board()[slot] = 0.0
        return slot

    def give_slot(self, slot: int) -> None:
        """The place may be used again."""
        with self._lock:
            self._free.append(slot)

    def board(self) -> Any:
        """Three numbers a task: when it began, the process that it runs in, and whether it is done."""
        buffer = None if self._board is None else self._board.buf
        # Closed meanwhile, by another thread: nothing begins any more.
        return np.zeros((_SLOTS, 3)) if buffer is None else np.ndarray((_SLOTS, 3), np.float64, buffer)

    @property
    def board_name(self) -> str:
        """The block that it lies in."""
        assert self._board is not None, "a slot was taken"
        return self._board.name


class RunningProcess:
    """A task in a worker."""

    def __init__(self, place: Processes, task: Task, key: int, body: bytes) -> None:
        """Lay its inputs out where workers see them."""
        self.place = place
        self.term: Term = task.term
        self.timeout: float = task.timeout
        self._key, self._body = key, body
        self._blocks: list[SharedMemory] = []
        self._retried = False
        self._sendings = 0
        self._cancelled = False
        self._given_back = False
        self._task = task
        self._slot = place.take_slot(task.term.name)
        try:
            self._pack()
        except BaseException:
            self._give_back(())
            raise

    def _pack(self) -> None:
        """The inputs as bytes, and large ones where workers see them."""
        task, name = self._task, self.term.name
        try:
            self._data, arrays = dumps((dict(task.inputs), task.wrt, task.step, task.state))
        except Exception as error:
            raise TermError(name, f"its inputs cannot be sent to another process: {said(error)}") from error
        self._settings = settings_of(arrays)
        self._arrays: list[Packed | Lent] = list(arrays)
        self._outlet: Outlet | None = None
        # Room for large inputs and, behind them, for the gradient, which has the form of those that it is taken at.
        there = sum(aligned(packed.data.nbytes) for packed in arrays if packed.data.nbytes >= LARGE)
        wanted = [array.nbytes for name in task.wrt for _, array in arrays_in(task.inputs[name])]
        back = sum(aligned(nbytes) for nbytes in wanted if nbytes >= LARGE)
        if not there + back:
            return
        if not self._blocks:
            try:
                self._blocks.append(self.place.blocks.take(there + back))
            except OSError as error:
                message = f"there is no room for {there + back} bytes of shared memory: {said(error)}"
                raise TermError(name, f"{message}; a container takes --shm-size") from error
        (block,), offset = self._blocks, 0
        for place, packed in enumerate(arrays):
            if packed.data.nbytes >= LARGE:
                self._arrays[place] = lay(block, packed, offset)
                offset += aligned(packed.data.nbytes)
        if back:
            self._outlet = Outlet(block.name, there, back)

    def send(self) -> None:
        """Hand it to the crew."""
        self.place.board()[self._slot] = 0.0
        request = Request(
            self.term.name,
            self._key,
            self._body,
            self._data,
            self._arrays,
            self._outlet,
            self._settings,
            (self.place.board_name, self._slot),
        )
        try:
            self._crew, self._promise = self.place.schedule(request)
        except RuntimeError as error:
            self._give_back(())
            if self.place.closed:
                raise self._closed() from error
            raise WorkerLostError(self.term.name, f"no worker can be started: {error}") from error
        self._sent = time.monotonic()

    def _closed(self) -> TermError:
        return TermError(self.term.name, "the executor was closed before it was done")

    def result(self) -> Evaluation:
        """Wait until it is done, late or lost."""
        try:
            reply = self._reply()
            evaluation = self._read(reply)
        except BaseException:
            self._give_back(())
            raise
        self._give_back(reply.retained)
        return evaluation

    def _reply(self) -> Reply:
        patience = self.timeout
        while True:
            try:
                return self._promise.result(min(patience, 1.0))
            except NotYet:
                patience = self._patience()
            except Exception as error:
                self._lost(_how(error), error)
                patience = self.timeout

    def _patience(self) -> float:
        """Seconds that are left to it; raises where there are none."""
        if self.place.closed:
            raise self._closed()
        began, _, done = self.place.board()[self._slot].tolist()
        now = time.monotonic()
        if done:
            # The reply is on its way.
            return _LOOK
        if began:
            left = began + self.timeout - now
            if left <= 0:
                self._promise.cancel()
                raise TermTimeoutError(self.term.name, f"took more than {self.timeout:g} s; its process was killed")
            return left
        if self._promise.running() and now - self._sent > _LOADING:
            self._promise.cancel()
            raise TermTimeoutError(self.term.name, f"was not loaded within {_LOADING:g} s; its process was killed")
        return _LOOK

    def _lost(self, how: str, error: BaseException) -> None:
        """Send it again, once and where that does no harm; else raise."""
        if self.place.closed:
            raise self._closed() from error
        if self._cancelled:
            raise TermError(self.term.name, "was cancelled") from error
        if isinstance(error, _BROKEN):
            self.place.replace(self._crew)
        began = bool(self.place.board()[self._slot, 0])
        # One that has not begun may go to every worker in turn: all may have died while they had nothing to do.
        self._sendings += 1
        if self._sendings > self.place.max_workers + 1 or (began and (self._retried or not self.term.idempotent)):
            again = " twice" if self._retried and self.term.idempotent else ""
            hint = "" if self.term.idempotent else "; idempotent=True lets it run again"
            raise WorkerLostError(self.term.name, f"{how}{again}{hint}") from error
        self._retried = self._retried or began
        # Anew: the first attempt may have changed them.
        self._pack()
        self.send()

    def _read(self, reply: Reply) -> Evaluation:
        arrays: list[Packed] = []
        for array in reply.arrays:
            if isinstance(array, Lent):
                array = read(next(block for block in self._blocks if block.name == array.block), array)
            arrays.append(array)
        try:
            found = loads(reply.data, arrays)
        except Exception as error:
            message = f"what it returned cannot be read here: {said(error)}"
            raise TermError(self.term.name, message) from error
        if isinstance(found, Failure):
            raise found.error()
        return Evaluation(*found)

    def _give_back(self, retained: tuple[str, ...]) -> None:
        if not self._given_back:
            self._given_back = True
            self.place.blocks.give(self._blocks, retained)
            self.place.give_slot(self._slot)

    def cancel(self) -> None:
        """Kill its worker, or never begin."""
        self._cancelled = True
        if not self._given_back:
            self._promise.cancel()
            reply = self._promise.reply
            self._give_back(() if reply is None else reply.retained)


def _how(error: BaseException) -> str:
    """How a task was lost, by what the pool says."""
    if isinstance(error, _BROKEN):
        return "its workers broke"
    code: int = getattr(error, "exitcode", 0)
    return f"its process died ({f'killed by signal {-code}' if code < 0 else f'exit status {code}'})"
