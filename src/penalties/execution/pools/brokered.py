"""The caller's side of a broker: starts it, and takes the workers that it starts."""

import contextlib
import itertools
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import resource_tracker
from typing import Final

from .. import broker
from ..broker import ENDED, LOST, READY, Config
from ..slots import SHARED
from .connected import Connected, exists

__all__ = ["Brokered"]

_STARTING: Final = 60.0
"""Seconds that a broker may take to start, and a worker to connect."""

_HELLO: Final = 5.0
"""Seconds within which a connected worker must identify itself."""

_ENDING: Final = 5.0
"""Seconds that a broker may take to end before it is killed."""

_GRACE: Final = 0.5
"""Seconds that Python's resource tracker has to remove the locks of a broker that died."""

_REPORT: Final = 1.0
"""Seconds that the broker has to say how a worker ended."""

_LOOK: Final = 0.2
"""Seconds between looks at a broker from which no worker connects."""

_PATIENCE: Final = 1.0
"""Seconds without a worker after which a broker, or its server, may have been stopped."""

_SINGLE_THREADED: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

_LONGEST_ADDRESS: Final = 100
"""Bytes in the path of a socket that every system takes."""

_numbers: Final = itertools.count()


class Brokered:
    """A broker, whose workers connect to a socket here."""

    def __init__(self, workers: int, streams: tuple[int, int] | None = None) -> None:
        """Start it, and wait until it is there; its workers come one by one."""
        self.ended: bool = False
        self._streams = streams or (None, None)
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        """Exit statuses that were received and not yet asked for."""
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.ExitStack() as opened:
            self._opened = opened
            above = SHARED if os.access(SHARED, os.W_OK) else None
            folder = tempfile.mkdtemp(prefix=f"penalties-{os.getpid()}-", dir=above)
            opened.callback(shutil.rmtree, folder, ignore_errors=True)
            address = os.path.join(folder, f"socket-{next(_numbers)}")
            if len(os.fsencode(address)) > _LONGEST_ADDRESS:
                raise OSError(f"the path of its socket is too long: {address}; set TMPDIR to a shorter folder")
            self._listener: socket.socket = opened.enter_context(socket.socket(socket.AF_UNIX))
            self._listener.bind(address)
            self._listener.listen(workers)
            self._listener.settimeout(_LOOK)
            self._connection, theirs = socket.socketpair()
            opened.enter_context(self._connection)
            opened.callback(self._kill)
            with theirs:
                self._start(folder, address, theirs, workers)
            # It stays open.
            self._opened = opened.pop_all()

    def _start(self, folder: str, address: str, theirs: socket.socket, workers: int) -> None:
        preload = (*(name for name in ("torch",) if name in sys.modules), "penalties.execution.worker")
        search_path = os.environ.get("PYTHONPATH")
        config = Config(folder, address, theirs.fileno(), workers, preload, tuple(sys.path), search_path)
        self._process = process = _new_process(config, *self._streams)
        theirs.close()
        assert process.stdin is not None, "a pipe"
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(pickle.dumps(tuple(config)))
        self._connection.settimeout(_STARTING)
        if self._connection.recv(len(READY)) != READY:
            raise RuntimeError(f"the broker did not start (exit status {process.wait(_STARTING)})")

    def accept(self) -> Connected:
        """The next worker to connect; raises `RuntimeError` where none does, or where the broker has ended."""
        start = time.monotonic()
        while not self.ended and (waited := time.monotonic() - start) < _STARTING:
            if waited > _PATIENCE:
                self._signal(signal.SIGCONT)
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                pass
            except OSError:
                # Closed meanwhile; else there are no descriptors left.
                if not self.ended:
                    raise
            else:
                connected = _greeted(connection)
                if connected is not None:
                    return connected
            with self._lock:
                self._hear(0.001)
        why = "the broker ended" if self.ended else f"no worker connected within {_STARTING:g} s"
        self.ended = True
        raise RuntimeError(why)

    def _hear(self, seconds: float) -> None:
        """Wait for a message from the broker."""
        try:
            self._connection.settimeout(seconds)
            message = self._connection.recv(ENDED.size)
        except TimeoutError:
            return
        except OSError:
            message = b""
        if message:
            number, code = ENDED.unpack(message)
            self._codes[number] = code
        else:
            self.ended = True

    def how_ended(self, connected: Connected) -> str:
        """How a worker ended that is gone, or has to go; the broker replaces it."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._connection.sendall(LOST.pack(connected.number, connected.pid))
            end = time.monotonic() + _REPORT
            while connected.number not in self._codes and not self.ended and (left := end - time.monotonic()) > 0:
                self._hear(left)
            if self.ended:
                return "the worker pool broke"
            code = self._codes.pop(connected.number, None)
        if code is None:
            return "its process died"
        return f"its process died ({f'killed by signal {-code}' if code < 0 else f'exit status {code}'})"

    def close(self) -> None:
        """End the broker with everything that it started."""
        if not self.ended and self._process is not None:
            self.ended = True
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            # One that was stopped could not end by itself.
            self._signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING)
        self._opened.close()

    def _signal(self, number: signal.Signals) -> None:
        """To the broker and everything that it started."""
        process = self._process
        # Not once it was waited for: until then its number, which is that of the group, cannot be another's.
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            # The tracker alone ignores the first, and ends by itself.
            self._signal(signal.SIGTERM)
            time.sleep(_GRACE)
            self._signal(signal.SIGKILL)
            self._process.wait()


def _greeted(connection: socket.socket) -> Connected | None:
    """A worker that has connected, unless it has died since."""
    try:
        connection.settimeout(_HELLO)
        number, pid = map(int, connection.recv(100).split())
    except (OSError, ValueError):
        pid = number = 0
    if pid > 0 and exists(pid):
        return Connected(connection, number, pid)
    connection.close()
    return None


def _new_process(config: Config, output: int | None, errors: int | None) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        # A broker that died leaves locks behind, which Python's resource tracker removes, with a warning.
        [sys.executable, "-P", "-W", f"ignore::UserWarning:{resource_tracker.__name__}", "-m", broker.__name__],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
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
