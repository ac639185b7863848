"""Terms on a Ray cluster: for when one machine is not enough."""

import contextlib
import os
import signal
import time
from typing import Any, Final

import numpy as np

from ...errors import TermError, TermTimeoutError
from ..remote import Request, UnknownFunctionError, evaluate, failed, load
from ..task import Task
from .ray_connection import answered, connection, library
from .workers import LOADING, RemoteTask, Worker, WorkerPool, reason_of

__all__ = ["RayPool", "TermEvaluator"]

_LOOK: Final = 1.0
"""Seconds between looks at an actor that starts."""

_KILLING: Final = 2.0
"""Seconds in which Ray takes note that an actor is to be killed: it waits for a cluster that was stopped."""

_TAKING: Final = 20.0
"""Seconds in which an actor that is alive says whether it has a function: else it was stopped, or is held up."""


class RayPool(WorkerPool):
    """Actors that evaluate terms.

    The cluster is the one that the caller is connected to (`ray.init(address=…)`), else the one that the environment
    names (`RAY_ADDRESS`), else one on this machine, which ends with the executor. penalties, and the modules that a
    term's function comes from, have to be installed on the cluster's machines.

    There are as many actors as terms to run at once, each on its own processor until the executor is closed: at
    most as many as the cluster has processors, or `max_workers` where that is more, since actors that wait for room are
    what makes an autoscaling cluster grow.
    """

    def __init__(self, max_workers: int) -> None:
        """Actors start with the first term, and so does a cluster where there is none."""
        super().__init__(max_workers)
        self._evaluator: Any = None
        self.local: bool = False
        """Whether the cluster is one of our own, on this machine."""
        # Until the first worker has connected: then the size of the cluster is known.
        self.most: int = 1

    def new_worker(self) -> Worker:
        """A worker without an actor."""
        return _RayWorker(self)

    def why_none(self, error: Exception) -> str:
        """The message where no actor could be started."""
        return f"could not start a worker on the cluster: {reason_of(error)}"

    def start(self, task: Task) -> RemoteTask:
        """Queue it; an actor begins as soon as one is free."""
        library()
        return super().start(task)

    def new_actor(self) -> Any:
        """An actor, which may not have started yet, on any node."""
        ray = library()
        local = connection.open(self, self.max_workers)
        processors = 0 if local else answered(LOADING, ray.cluster_resources).get("CPU", 0)
        with self.changed:
            self.local = local
            self.most = max(int(processors), self.max_workers)
            self.add_workers()
            if self._evaluator is None:
                self._evaluator = ray.remote(TermEvaluator)
        # The executors that share a cluster of our own limit themselves, and would only wait for each other.
        return self._evaluator.options(num_cpus=0 if local else 1, scheduling_strategy="SPREAD").remote()

    def close(self) -> None:
        """Kill every actor; a cluster of our own ends, the caller's is left alone."""
        super().close()
        connection.close(self)


class _RayWorker(Worker):
    """An actor."""

    def __init__(self, pool: RayPool) -> None:
        super().__init__(pool, "penalties-ray")
        self.ray_pool: RayPool = pool
        self.actor: Any = None
        self.address: str = ""
        self._pid = 0
        """The actor's process, on this machine."""

    def connect(self) -> None:
        ray = library()
        for last in (False, True):
            actor = self.ray_pool.new_actor()
            with self.pool.changed:
                self.actor = actor
                if self.pool.closed:
                    return
            try:
                pid, node = self._started(actor)
            except ray.exceptions.RayError as error:
                self.kill()
                if self.pool.closed:
                    return
                if last or isinstance(error, ray.exceptions.GetTimeoutError):
                    raise
            else:
                with self.pool.changed:
                    self.alive = self.actor is actor
                    self.address = f"process {pid} on {node}"
                    self._pid = pid if self.alive and self.ray_pool.local else 0
                return

    def _started(self, actor: Any) -> tuple[int, str]:
        """Wait for an actor, until it is late or the pool is closed: a cluster that was stopped answers nothing."""
        ray = library()
        found, end = actor.address.remote(), time.monotonic() + LOADING
        while True:
            try:
                return ray.get(found, timeout=min(_LOOK, LOADING))
            except ray.exceptions.GetTimeoutError:
                if self.pool.closed or time.monotonic() > end:
                    raise

    def kill(self) -> None:
        with self.pool.changed:
            actor, self.actor = self.actor, None
            pid, self._pid = self._pid, 0
            self.alive = False
        ray = library()
        if actor is not None and ray.is_initialized():
            # One of an earlier connection ended with that.
            with contextlib.suppress(ray.exceptions.RayError, ConnectionError):
                answered(_KILLING, ray.kill, actor)
        if pid:
            # A cluster that ends right now may not do so, and an actor that is stopped would stay.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def evaluate(self, running: RemoteTask) -> None:
        ray = library()
        actor, request = self.actor, tuple(running.request)
        reached = began = False
        try:
            if not ray.is_initialized():
                raise ConnectionError("the connection to the cluster was closed")
            # First without the function: is the actor still there, and does it have it?
            known, reply = ray.get(actor.load.remote(request, None), timeout=_TAKING)
            reached = True
            if not known:
                _, reply = ray.get(actor.load.remote(request, running.function.body), timeout=LOADING)
            if reply is None:
                submitted = actor.run.remote(request, running.packed.arrays)
                began = True
                reply = ray.get(submitted, timeout=running.timeout)
                self.used = True
        except ray.exceptions.GetTimeoutError:
            self.kill()
            if not reached:
                running.lose(f"its worker ({self.address}) did not accept it", began=False, counts=not self.used)
                return
            what = f"took more than {running.timeout:g} s" if began else f"was not loaded within {LOADING:g} s"
            running.fail(TermTimeoutError(running.name, f"{what}; its worker on the cluster was killed"))
        except Exception as error:
            # Its number may be another's by now.
            self._pid = 0
            self.kill()
            lost = not reached or isinstance(error, ray.exceptions.RayError)
            if not lost or isinstance(error, ray.exceptions.RayTaskError):
                # Neither a loss nor the term's doing: for example, a cluster with another release of penalties.
                running.fail(TermError(running.name, f"failed on the cluster: {reason_of(error)}"), error)
            else:
                how = f"its worker ({self.address}) was lost"
                running.lose(how, began=began, counts=reached or not self.used, cause=error)
        else:
            # Copied: what is in Ray's memory goes with the cluster, and nobody may write to it.
            running.settle(reply[0], [np.array(array) for array in reply[1]])


class TermEvaluator:
    """The inside of an actor: loads terms once, and evaluates them."""

    def __init__(self) -> None:
        """Set the process up."""
        # Arrays come through the memory of the host; an actor has no accelerator unless it was given one.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")

    def address(self) -> tuple[int, str]:
        """Which process this is, on which node."""
        return os.getpid(), library().util.get_node_ip_address()

    def load(self, parts: tuple[Any, ...], body: bytes | None) -> tuple[bool, Any]:
        """Load a term; returns whether its function is here, and the failure if it cannot be loaded."""
        request = Request(*parts)
        try:
            load(request, body)
        except UnknownFunctionError:
            return False, None
        except TermError as error:
            return True, failed(request.name, error)[:2]
        return True, None

    def run(self, parts: tuple[Any, ...], arrays: list[np.ndarray[Any, Any]]) -> tuple[bytes, list[Any]]:
        """Evaluate a term that is loaded; returns its evaluation, or the failure."""
        request = Request(*parts)
        # Copied: nobody may write to what is in Ray's memory.
        return evaluate(load(request, None), request, [np.array(array) for array in arrays])[:2]
