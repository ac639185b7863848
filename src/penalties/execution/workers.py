"""How worker processes are started: from a server of our own, so that no process with threads is ever forked."""

import contextlib
import multiprocessing.context as context
import os
import signal
import sys
import types
import weakref
from collections.abc import Callable
from multiprocessing import Pipe, forkserver, popen_forkserver, process, spawn
from typing import Any

__all__ = ["WorkerContext", "WorkerProcess"]


class WorkerProcess(process.BaseProcess):
    """A process that a server forks, with a line to the caller."""

    _start_method = "forkserver"
    line: Any = None
    """Its end of the line; the caller's is told to `started`."""
    popen: Any = None
    """What starts it; like `started` not known to the process itself."""
    started: Any = None

    def _Popen(self, process_obj: Any) -> Any:
        ours, self.line = Pipe()
        try:
            popen = self.popen(process_obj)
        finally:
            self.line.close()
            self.line = ours
        return popen

    def start(self) -> None:
        """Start it, and tell of the line to it."""
        super().start()
        self.started(self, self.line)

    def __getstate__(self) -> dict[str, Any]:
        """What the process is told of itself."""
        return {key: value for key, value in vars(self).items() if key not in ("popen", "started")}


class WorkerContext(context.BaseContext):
    """A `multiprocessing` context for the workers of one executor.

    Workers are forked from a small server that has no threads, no CUDA and no JAX; PyTorch is loaded there once where
    the caller has it, so that a worker starts in 20 ms instead of a second. The caller's script is not run again in
    them: what they need of it travels by value.
    """

    def __init__(self, started: Callable[[Any, Any], None]) -> None:
        """Choose what the server loads; it starts with the first worker. `started` is told of each, and its line."""
        super().__init__()
        self._started = started
        # Kept as long as a worker may be starting, which looks for them by name.
        self._locks: list[Any] = []
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._server: Any = forkserver.ForkServer()
        loaded = ["torch"] if "torch" in sys.modules else []
        self._server.set_forkserver_preload(["penalties.execution.preload", *loaded, "penalties.execution.worker"])
        self._popen = _popen_class(self._server)

    def Process(self, *args: Any, **kwargs: Any) -> Any:
        """A process that has not started."""
        made = WorkerProcess(*args, **kwargs)
        made.popen, made.started = self._popen, self._started
        self._made.add(made)
        return made

    def RLock(self) -> Any:
        """A lock that workers share."""
        lock = super().RLock()
        self._locks.append(lock)
        return lock

    def get_start_method(self, allow_none: bool = False) -> str:
        """How workers are started."""
        return "forkserver"

    def get_context(self, method: str | None = None) -> Any:
        """Itself."""
        return self

    def kill(self) -> None:
        """Kill every worker, whatever it is doing."""
        for worker in list(self._made):
            with contextlib.suppress(ProcessLookupError):
                if worker.is_alive():
                    os.kill(worker.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server, once its workers are gone."""
        # Killed: asked to end, it would wait for whatever a term has forked and left.
        pid: Any = getattr(self._server, "_forkserver_pid", None)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        # At the end of the program the folder of its socket may be gone before it is.
        with contextlib.suppress(FileNotFoundError):
            self._server._stop()
        self._locks.clear()


def _disown() -> None:
    """In a fork of the caller: its workers are not ours to stop."""
    children: set[Any] = vars(process)["_children"]
    children.difference_update([child for child in children if isinstance(child, WorkerProcess)])


os.register_at_fork(after_in_child=_disown)


def _popen_class(server: Any) -> Any:
    # The same code as the standard library's, with our server in place of the one that the whole process shares, and
    # without the caller's script among what a worker prepares.
    names = dict(vars(popen_forkserver))
    names["forkserver"] = types.SimpleNamespace(
        connect_to_new_process=server.connect_to_new_process, read_signed=forkserver.read_signed
    )
    names["spawn"] = types.SimpleNamespace(get_preparation_data=_without_script)
    launch: Any = vars(popen_forkserver.Popen)["_launch"]

    class Popen(popen_forkserver.Popen):
        _launch = types.FunctionType(launch.__code__, names, "_launch", launch.__defaults__, launch.__closure__)

    return Popen


def _without_script(name: str) -> dict[str, Any]:
    data = spawn.get_preparation_data(name)
    return {key: value for key, value in data.items() if not key.startswith("init_main")}
