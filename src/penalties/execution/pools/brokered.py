"""The caller's side of a broker: starts it, and sends its workers one task after another."""

import contextlib
import itertools
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from multiprocessing import resource_tracker
from typing import Final, NamedTuple

from .. import broker
from ..broker import ENDED, LOST, READY, Config
from ..slots import Slot
from ..worker import Outcome

__all__ = ["Answer", "Brokered", "Submitted"]

_STARTING: Final = 60.0
"""Seconds that a broker may take to start, and its first worker to connect."""

_ENDING: Final = 10.0
"""Seconds that a broker may take to end before it is killed."""

_GRACE: Final = 0.5
"""Seconds that Python's resource tracker has to remove the locks of a broker that died."""

_REPORT: Final = 1.0
"""Seconds that the broker has to say how a worker ended."""

_LOOK: Final = 0.5
"""Seconds between looks at the workers, whose end may not be seen at their connections."""

_SINGLE_THREADED: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

_numbers: Final = itertools.count()


class Answer(NamedTuple):
    """The one answer to a task."""

    outcome: Outcome
    detail: str = ""
    began: bool = False
    """Whether the function had begun to run."""


class Submitted:
    """A task that waits for a worker, or that one has."""

    def __init__(self, slot: Slot) -> None:
        """It waits."""
        self.slot = slot
        self.answer: Future[Answer] = Future()
        self.worker: _Worker | None = None
        self.sent: float = 0.0
        """When it was sent to a worker; 0 before."""


class _Worker:
    """A worker that has connected."""

    def __init__(self, number: int, pid: int, connection: socket.socket) -> None:
        self.number = number
        self.pid = pid
        self.connection = connection
        self.submitted: Submitted | None = None
        """The task that it has."""
        self.killed: bool = False
        self.gone: float = 0.0
        """When its end was seen; 0 before."""


class Brokered:
    """A broker and its workers. A thread receives whatever they send."""

    def __init__(self, folder: str, workers: int) -> None:
        """Start it, and wait until it is there; its workers come one by one."""
        self.closed: bool = False
        self._lock = threading.Lock()
        self._waiting: deque[Submitted] = deque()
        self._workers: dict[int, _Worker] = {}
        self._idle: list[_Worker] = []
        self._started = time.monotonic()
        address = os.path.join(folder, f"socket-{next(_numbers)}")
        self._listener = socket.socket(socket.AF_UNIX)
        self._connection, theirs = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        try:
            self._listener.bind(address)
            self._listener.listen(workers)
            with theirs:
                config = Config(
                    folder,
                    address,
                    theirs.fileno(),
                    workers,
                    (*(name for name in ("torch",) if name in sys.modules), "penalties.execution.worker"),
                    tuple(sys.path),
                    os.environ.get("PYTHONPATH"),
                )
                self._process = _new_process(config)
        except BaseException:
            self._close_connections()
            raise
        try:
            assert self._process.stdin is not None, "a pipe"
            with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
                stdin.write(pickle.dumps(tuple(config)))
            self._connection.settimeout(_STARTING)
            if self._connection.recv(len(READY)) != READY:
                raise RuntimeError(f"the broker did not start (exit status {self._process.wait(_STARTING)})")
        except BaseException:
            self._kill()
            self._close_connections()
            raise
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._receive, name="penalties-broker", daemon=True)
        self._thread.start()

    def submit(self, slot: Slot) -> Submitted:
        """Send the task in a slot to a worker, now or when one is free; raises `RuntimeError` if the broker is gone."""
        submitted = Submitted(slot)
        slot.reset_clock()
        with self._lock:
            if self.closed:
                raise RuntimeError("the broker ended")
            if self._idle:
                self._send(self._idle.pop(), submitted)
            else:
                self._waiting.append(submitted)
        return submitted

    def cancel(self, submitted: Submitted) -> bool:
        """Kill its worker, or never begin; False where it is over."""
        with self._lock:
            worker = submitted.worker
            if worker is None:
                if submitted not in self._waiting:
                    return False
                self._waiting.remove(submitted)
            else:
                if worker.submitted is not submitted:
                    return False
                worker.submitted, worker.killed = None, True
                if not worker.gone:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGKILL)
        submitted.answer.set_result(Answer(Outcome.CANCELLED))
        return True

    def _send(self, worker: _Worker, submitted: Submitted) -> None:
        worker.submitted, submitted.worker, submitted.sent = submitted, worker, time.monotonic()
        # Where it has just ended, the receiving thread finds out, and answers for it.
        with contextlib.suppress(OSError):
            worker.connection.sendall(submitted.slot.name.encode())

    def _receive(self) -> None:
        look = 0.0
        with contextlib.suppress(EOFError):
            while True:
                for key, _ in self._selector.select(_LOOK):
                    if key.data is not None:
                        self._hear_worker(key.data)
                    elif key.fileobj is self._listener:
                        self._accept_worker()
                    else:
                        self._hear_broker()
                if time.monotonic() > look:
                    look = time.monotonic() + _LOOK
                    self._look()
        self._end()

    def _accept_worker(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_STARTING)
        hello = _received(connection)
        if not hello:
            connection.close()
            return
        number, pid = map(int, hello.split())
        self._workers[number] = worker = _Worker(number, pid, connection)
        self._selector.register(connection, selectors.EVENT_READ, worker)
        self._next_task(worker)

    def _next_task(self, worker: _Worker) -> Submitted | None:
        """Send a worker that is free the next task; returns the one that it had."""
        with self._lock:
            before, worker.submitted = worker.submitted, None
            if not worker.killed:
                if self._waiting:
                    self._send(worker, self._waiting.popleft())
                else:
                    self._idle.append(worker)
        return before

    def _hear_worker(self, worker: _Worker) -> None:
        answer = _received(worker.connection)
        if not answer:
            self._mark_gone(worker)
        elif (submitted := self._next_task(worker)) is not None:
            submitted.answer.set_result(Answer(Outcome(answer[0]), answer[1:].decode(errors="replace")))

    def _hear_broker(self) -> None:
        message = _received(self._connection, ENDED.size)
        if not message:
            raise EOFError
        number, code = ENDED.unpack(message)
        if number in self._workers:
            self._mark_gone(self._workers[number])
            self._forget(self._workers[number], code)

    def _mark_gone(self, worker: _Worker) -> None:
        if not worker.gone:
            worker.gone = time.monotonic()
            with self._lock:
                if worker in self._idle:
                    self._idle.remove(worker)
            self._selector.unregister(worker.connection)
            worker.connection.close()

    def _forget(self, worker: _Worker, code: int | None) -> None:
        """Answer for the task of a worker that has ended."""
        del self._workers[worker.number]
        with self._lock:
            submitted, worker.submitted = worker.submitted, None
        if submitted is not None:
            submitted.answer.set_result(Answer(Outcome.LOST, _how(code), submitted.slot.began > 0))

    def _look(self) -> None:
        """See to what the connections do not tell."""
        now = time.monotonic()
        for worker in list(self._workers.values()):
            # What a term forked may hold the connection of a worker open.
            if not worker.gone and not _exists(worker.pid):
                self._mark_gone(worker)
            elif worker.gone and now - worker.gone > _REPORT:
                with contextlib.suppress(OSError):
                    self._connection.sendall(LOST.pack(worker.number))
                self._forget(worker, None)
        if self._workers or not self._waiting:
            self._started = now
        elif now - self._started > _STARTING:
            raise EOFError

    def _end(self) -> None:
        """The broker is gone, or ends: so do its workers, and nothing more is answered."""
        if self.closed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING)
        self._kill()
        with self._lock:
            self.closed = True
            left = [worker.submitted for worker in self._workers.values() if worker.submitted is not None]
            left += self._waiting
            for worker in self._workers.values():
                worker.submitted = None
            self._waiting.clear()
        for submitted in left:
            submitted.answer.set_result(Answer(Outcome.LOST, "the worker pool broke", submitted.slot.began > 0))
        self._close_connections()

    def _kill(self) -> None:
        # Before it is waited for: until then its number, which is that of the group, cannot be another's.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # The tracker alone ignores the first, and ends by itself.
                os.killpg(self._process.pid, signal.SIGTERM)
                time.sleep(_GRACE)
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _close_connections(self) -> None:
        self._selector.close()
        for connection in (self._listener, self._connection, *(worker.connection for worker in self._workers.values())):
            connection.close()

    def close(self) -> None:
        """End the broker with everything that it started."""
        # Without the lock, which this thread may hold where the garbage collector closes a forgotten executor.
        self.closed = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join(_STARTING + _ENDING)


def _received(connection: socket.socket, nbytes: int = 2000) -> bytes:
    """A message, which is so short that it comes whole; nothing where the other end is gone."""
    try:
        return connection.recv(nbytes)
    except OSError:
        return b""


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


def _new_process(config: Config) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        # A broker that died leaves locks behind, which Python's resource tracker removes, with a warning.
        [sys.executable, "-P", "-W", f"ignore::UserWarning:{resource_tracker.__name__}", "-m", broker.__name__],
        stdin=subprocess.PIPE,
        env=_environment(),
        pass_fds=[config.connection],
        # Ctrl-C is for the caller, which may go on. And all of it can be killed as one group.
        start_new_session=True,
    )


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
