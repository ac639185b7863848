"""The caller's side of a broker: starts it, sends it tasks, and receives the answers."""

import contextlib
import itertools
import multiprocessing.connection
import os
import pickle
import secrets
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from multiprocessing import resource_tracker
from typing import Any, Final, NamedTuple

from .. import broker
from ..board import ENTRIES, Board, State
from ..broker import Answer, Config
from ..slots import Slot

__all__ = ["Brokered", "Submitted"]

_STARTING: Final = 60.0
"""Seconds that a broker may take to listen."""

_ENDING: Final = 10.0
"""Seconds that a broker may take to end before it is killed."""

_GRACE: Final = 0.5
"""Seconds that Python's resource tracker has to remove the locks of a broker that died."""

_SINGLE_THREADED: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

_numbers: Final = itertools.count()


class Submitted(NamedTuple):
    """A task that a broker has."""

    task: int
    entry: int
    """Its line on the board."""
    answer: "Future[Answer]"


class Brokered:
    """A broker and its workers."""

    def __init__(self, folder: str, workers: int) -> None:
        """Start it; its workers start with the first task."""
        number = next(_numbers)
        path, address = os.path.join(folder, f"board-{number}"), os.path.join(folder, f"socket-{number}")
        self.board: Board = Board(path, create=True)
        self.closed: bool = False
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._ending = threading.Lock()
        self._free = list(range(ENTRIES))
        self._pending: dict[int, Submitted] = {}
        self._tasks = itertools.count(1)
        key = secrets.token_bytes(32)
        loaded = tuple(name for name in ("torch",) if name in sys.modules)
        config = Config(
            folder,
            address,
            key,
            path,
            workers,
            (*loaded, "penalties.execution.worker"),
            tuple(sys.path),
            os.environ.get("PYTHONPATH"),
        )
        self._process = subprocess.Popen(
            # A broker that died leaves locks behind, which Python's resource tracker removes, with a warning.
            [sys.executable, "-P", "-W", f"ignore::UserWarning:{resource_tracker.__name__}", "-m", broker.__name__],
            stdin=subprocess.PIPE,
            env=_environment(),
            # Ctrl-C is for the caller, which may go on. And all of it can be killed as one group.
            start_new_session=True,
        )
        try:
            assert self._process.stdin is not None, "a pipe"
            with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
                stdin.write(pickle.dumps(tuple(config)))
            self._connection = self._connect(address, key)
        except BaseException:
            self._kill()
            raise
        threading.Thread(target=self._receive, name="penalties-broker", daemon=True).start()

    def _connect(self, address: str, key: bytes) -> Any:
        end = time.monotonic() + _STARTING
        while True:
            try:
                return multiprocessing.connection.Client(address, "AF_UNIX", authkey=key)
            except (FileNotFoundError, ConnectionRefusedError, EOFError) as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the broker did not start (exit status {self._process.poll()})") from error
                time.sleep(0.005)

    def submit(self, slot: Slot) -> Submitted:
        """Send the task in a slot; raises `RuntimeError` where the broker is gone."""
        with self._lock:
            if self.closed:
                raise RuntimeError("the broker ended")
            if not self._free:
                raise RuntimeError(f"there are more than {ENTRIES} tasks at once")
            submitted = Submitted(next(self._tasks), self._free.pop(), Future())
            self.board.queue(submitted.entry, submitted.task)
            self._pending[submitted.task] = submitted
        self._send((submitted.task, submitted.entry, slot.name))
        return submitted

    def cancel(self, submitted: Submitted) -> None:
        """Have its worker killed, or the task never begun; the answer says so."""
        if submitted.task in self._pending:
            self._send((submitted.task, submitted.entry, None))

    def _send(self, message: Any) -> None:
        # Where the broker is gone, the receiving thread finds out, too, and answers for it.
        with self._sending, contextlib.suppress(OSError):
            self._connection.send(message)

    def _receive(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                answer = Answer(*self._connection.recv())
                with self._lock:
                    submitted = self._pending.pop(answer.task, None)
                    if submitted is not None:
                        self._free.append(submitted.entry)
                if submitted is not None:
                    submitted.answer.set_result(answer)
        self._end()

    def _end(self) -> None:
        """The broker is gone: so are its workers, and nothing more is answered."""
        self._kill()
        with self._lock:
            self.closed = True
            left = list(self._pending.values())
            self._pending.clear()
        for submitted in left:
            began = self.board.read(submitted.entry).began > 0
            submitted.answer.set_result(Answer(submitted.task, State.LOST, "the worker pool broke", began))
        with self._sending:
            self._connection.close()

    def _kill(self) -> None:
        # Before it is waited for: until then its number, which is that of the group, cannot be another's.
        with self._ending:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    # The tracker alone ignores the first, and ends by itself.
                    os.killpg(self._process.pid, signal.SIGTERM)
                    time.sleep(_GRACE)
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def close(self) -> None:
        """End the broker with everything that it started."""
        with self._lock:
            self.closed = True
        self._send(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING)
        self._kill()


def _environment() -> dict[str, str]:
    """For the broker, and what it starts: set here, since libraries read it when they are loaded."""
    environment = dict(os.environ)
    # The caller's own, without which not even the broker might be found.
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # As many workers as cores: more threads would only fight for them.
    environment |= dict.fromkeys(_SINGLE_THREADED, "1")
    # Arrays come through the memory of the host; a worker that took an accelerator would take it from the caller.
    environment.setdefault("JAX_PLATFORMS", "cpu")
    # Keep freed memory: fetching megabytes from the system at every step costs more than most terms.
    environment.setdefault("MALLOC_TRIM_THRESHOLD_", str(256 << 20))
    environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(32 << 20))
    return environment
