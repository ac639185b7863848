"""A Ray cluster on this machine, for callers who have not connected to one."""

import logging
import os
import subprocess
import sys
import threading
from typing import Any, Final

from ..errors import MissingLibraryError

__all__ = ["LocalRay", "library", "local"]

_ENDING: Final = 60.0
"""Seconds that a cluster may take to end."""


class LocalRay:
    """A connection for callers who have none: the executors of a process share it, and the last one ends it."""

    def __init__(self) -> None:
        """Not connected yet."""
        self._lock = threading.Lock()
        self._users: set[Any] = set()
        self._keeper: subprocess.Popen[str] | None = None
        self._connected: tuple[str, str] | None = None

    def connect(self, user: object, processors: int) -> bool:
        """Connect unless the caller is; gives whether the cluster is one of our own."""
        ray = library()
        with self._lock:
            if ray.is_initialized() and self._connected != _connection():
                return False
            self._users.add(user)
            if not ray.is_initialized():
                self._end()
                self._begin(processors)
            return self._keeper is not None

    def _begin(self, processors: int) -> None:
        options = {"address": os.environ.get("RAY_ADDRESS")}
        if not options["address"]:
            self._keeper = subprocess.Popen(
                [sys.executable, "-c", _KEEPER, str(processors)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                # Ctrl-C is for the caller, who may go on.
                start_new_session=True,
            )
            assert self._keeper.stdout is not None, "a pipe"
            answer = self._keeper.stdout.readline().strip()
            word, _, folder = answer.partition(" ")
            if word != "ready":
                raise RuntimeError(f"Ray did not start: {answer or 'its process ended'}")
            options = {"address": "auto", "_temp_dir": folder}
        library().init(**options, log_to_driver=False, logging_level=logging.ERROR)
        self._connected = _connection()

    def _end(self) -> None:
        ray = library()
        # The caller may have made a connection of their own since.
        if self._connected is not None and ray.is_initialized() and self._connected == _connection():
            ray.shutdown()
        keeper, self._keeper, self._connected = self._keeper, None, None
        if keeper is not None:
            try:
                # In a word, too: a fork of the caller may hold the other end.
                keeper.communicate("end\n", timeout=_ENDING)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.communicate()

    def leave(self, user: object) -> None:
        """One who uses it no longer."""
        with self._lock:
            if user in self._users:
                self._users.remove(user)
                if not self._users:
                    self._end()


local: Final = LocalRay()

_KEEPER: Final = """
import ctypes, logging, os, pathlib, signal, sys, tempfile

def left():
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getpid():
            yield int(entry.name)

try:
    # Workers whose own parent is gone become children of this process: one that was stopped ends for nobody else.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    import ray
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    # As short as Ray's own: the names of the sockets below it have about a hundred characters.
    above = "/tmp" if os.name == "posix" else None
    with tempfile.TemporaryDirectory(prefix="penalties-", dir=above, ignore_cleanup_errors=True) as folder:
        began = ray.init("local", num_cpus=int(sys.argv[1]), _temp_dir=folder, **quiet)
        # Where Ray looks for a cluster on this machine.
        pathlib.Path(folder, "ray_current_cluster").write_text(began.address_info["gcs_address"])
        print("ready", folder, flush=True)
        sys.stdout = open(os.devnull, "w")
        sys.stdin.readline()
        ray.shutdown()
        while orphans := [*left()]:
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)
except Exception as error:
    print(f"{type(error).__name__}: {error}".replace(chr(10), " "))
"""
"""A process that has a cluster for as long as its input is open, and so no longer than the caller lives.

Ray forks where it starts a cluster: here, and not in a process that has threads, CUDA and JAX. What it starts dies with
the thread that started it, too, and here that is the only one.
"""


def _connection() -> tuple[str, str]:
    """Which cluster this process is connected to, and as which of its jobs."""
    context = library().get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def library() -> Any:
    """Ray, or an error that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError('a term with runs="ray"', "ray", extra="ray") from error
    return ray
