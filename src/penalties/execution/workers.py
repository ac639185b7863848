"""How worker processes are started: from a server of our own, so that no process with threads is ever forked."""

import multiprocessing.context as context
import sys
import types
from multiprocessing import process, spawn
from typing import Any

__all__ = ["WorkerContext", "WorkerProcess"]


class WorkerProcess(process.BaseProcess):
    """A process that a server forks."""

    _start_method = "forkserver"
    popen: Any = None
    """What starts it; not known to the process itself."""

    def _Popen(self, process_obj: Any) -> Any:
        return self.popen(process_obj)

    def __getstate__(self) -> dict[str, Any]:
        """What the process is told of itself."""
        return {key: value for key, value in vars(self).items() if key != "popen"}


class WorkerContext(context.BaseContext):
    """A `multiprocessing` context for the workers of one executor.

    Workers are forked from a small server that has no threads, no CUDA and no JAX; PyTorch is loaded there once where
    the caller has it, so that a worker starts in 20 ms instead of a second. The caller's script is not run again in
    them: what they need of it travels by value. Where there is no such server (Windows), they are spawned.
    """

    def __init__(self) -> None:
        """Choose what the server loads; it starts with the first worker."""
        super().__init__()
        self._server: Any = None
        self._popen: Any = None
        if sys.platform != "win32":
            from multiprocessing import forkserver

            self._server = forkserver.ForkServer()
            loaded = ["torch"] if "torch" in sys.modules else []
            self._server.set_forkserver_preload(["penalties.execution.preload", *loaded, "penalties.execution.worker"])
            self._popen = _popen_class(self._server)

    def Process(self, *args: Any, **kwargs: Any) -> Any:
        """A process that has not started."""
        if self._server is None:
            return context.SpawnProcess(*args, **kwargs)
        made = WorkerProcess(*args, **kwargs)
        made.popen = self._popen
        return made

    def get_start_method(self, allow_none: bool = False) -> str:
        """How workers are started."""
        return "spawn" if self._server is None else "forkserver"

    def get_context(self, method: str | None = None) -> Any:
        """Itself."""
        return self

    def stop(self) -> None:
        """Stop the server, once its workers are gone."""
        if self._server is not None:
            self._server._stop()


def _popen_class(server: Any) -> Any:
    from multiprocessing import forkserver, popen_forkserver

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
