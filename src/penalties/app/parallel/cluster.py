"""Runs as tasks on a Ray cluster: one that is lost with its node is started on another, from its last checkpoint.

The folders of runs have to be on a file system that all nodes share.
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ...errors import MissingLibraryError, said
from ..privacy import hide
from ..runs.disk import RunError
from ..runs.run import Run
from ..train.knocking import knock
from .driving import Failure
from .worker import train_folder

__all__ = ["Cluster", "train_on_node"]

_AGAIN: Final = 20
"""How often a run is started again whose node was lost."""

_HELD: Final = 60.0
"""Seconds in which the lock of a run is free after its process was lost: file systems of several machines wait."""


class Cluster:
    """Tasks of a cluster, as many as it has room for."""

    def __init__(self, address: str | None, count: int | None = None, *, gpus: bool = True) -> None:
        """Connect to an address, by default `RAY_ADDRESS`, or to a cluster that starts on this machine.

        There is room for `count` runs, by default as many as there are processors, or GPUs: with `gpus`, each run has
        one where the cluster has any.
        """
        self._ray: Any = _library()
        self._ours = not self._ray.is_initialized()
        if self._ours:
            _connect(self._ray, address, count)
        found = self._ray.cluster_resources()
        kind = "GPU" if gpus and found.get("GPU", 0) >= 1 else "CPU"
        self._count = max(1, int(found.get(kind, 0)) if count is None else count)
        resources = {"num_cpus": 1, "num_gpus": 1 if kind == "GPU" else 0}
        # An error of the run is an answer: what is tried again is a run whose process or node was lost.
        self._train: Any = self._ray.remote(train_on_node).options(
            **resources, max_retries=_AGAIN, retry_exceptions=False, scheduling_strategy="SPREAD"
        )
        self._running: dict[Any, Path] = {}

    @property
    def free(self) -> int:
        """As many as there is room for, beside those that run."""
        return self._count - len(self._running)

    def submit(self, folder: Path) -> None:
        """Queue a run."""
        self._running[self._train.remote(str(folder.absolute()), _threads())] = folder

    def wait(self, seconds: float) -> Sequence[tuple[Path, Failure | None]]:
        """The runs that ended; one that was lost too often failed."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [(self._running.pop(one), self._answer(one)) for one in ready]

    def _answer(self, ready: Any) -> Failure | None:
        try:
            answer = self._ray.get(ready)
        except self._ray.exceptions.TaskCancelledError as error:
            return Failure(said(error), interrupted=True)
        except self._ray.exceptions.RayError as error:
            # The first line of it: the rest is of Ray's own processes.
            return Failure(hide(said(error)).splitlines()[0])
        return Failure(**answer) if answer else None

    def interrupt(self) -> None:
        """Signal each run; those that wait for room do not start."""
        for one in self._running:
            self._ray.cancel(one)

    def close(self) -> None:
        """End the tasks that run, and the connection if it is ours."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            for one in self._running:
                self._ray.cancel(one, force=True)
        if self._ours:
            self._ray.shutdown()


def train_on_node(folder: str, threads: int) -> dict[str, Any]:
    """Train the run of a folder in this process, with as many threads as elsewhere: their number changes last bits."""
    import torch

    torch.set_num_threads(threads)
    if not Run(folder).exists():
        return {
            "message": f"{folder} is not there on {os.uname().nodename}; choose a folder that all nodes of the cluster "
            "share, with --run",
            "status": 2,
        }
    return train_folder(folder, _HELD)


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _library() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingLibraryError("--ray", "ray", extra="ray") from error
    return ray


def _connect(ray: Any, address: str | None, count: int | None) -> None:
    address = os.environ.get("RAY_ADDRESS", "local") if address is None else address
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        options |= {"include_dashboard": False, **({} if count is None else {"num_cpus": count})}
    if ":" in address:
        # Ray itself would wait for minutes.
        knock(address if "://" in address else f"ray://{address}", "--ray")
    try:
        ray.init(**options)
    except Exception as error:
        reason = hide(said(error)).splitlines()[0]
        raise RunError(f"could not connect to Ray at {address}: {reason}; fix --ray", 2) from error
