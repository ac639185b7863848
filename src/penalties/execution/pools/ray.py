"""Terms on a Ray cluster: for when one machine is not enough."""

import contextlib
import os
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from ...errors import TermError, TermTimeoutError, WorkerLostError
from ...pipeline.evaluation import Evaluation
from ..failure import Failure
from ..functions import Functions
from ..portable import dumps
from ..remote import Request, UnknownFunctionError, evaluate, load, opened, request_of
from ..task import Task
from .ray_connection import connection, library

__all__ = ["RayPool", "RunningRay", "TermEvaluator"]

_LOADING: Final = 300.0
"""Seconds that an actor may take to start, and to load a term."""

_ENDING: Final = 60.0
"""Seconds that closing waits for a thread: Ray itself may be starting in it."""

_CLOSED: Final = "the executor was closed before it was done"


class RayPool:
    """Actors that evaluate terms. One that is late or lost is replaced, and its neighbours live on.

    The cluster is the one that the caller is connected to (`ray.init(address=…)`), else the one that the environment
    names (`RAY_ADDRESS`), else one on this machine, which ends with the executor. penalties, and the modules that a
    term's function comes from, have to be installed on the cluster's machines.

    There are as many actors as terms to run at once, each on a processor of its own until the executor is closed: at
    most as many as the cluster has processors, or `max_workers` where that is more, since actors that wait for room are
    what makes an autoscaling cluster grow.
    """

    def __init__(self, max_workers: int) -> None:
        """Actors start with the first term, and so does a cluster where there is none."""
        self.max_workers = max_workers
        self.closed: bool = False
        self.changed: threading.Condition = threading.Condition()
        self._functions = Functions()
        self._waiting: deque[RunningRay] = deque()
        self._workers: list[_Worker] = []
        self._evaluator: Any = None
        # Until the first worker has connected: then the size of the cluster is known.
        self._most = 1

    def start(self, task: Task) -> "RunningRay":
        """Queue it; an actor begins as soon as one is free."""
        library()
        running = RunningRay(self, task, self._functions)
        with self.changed:
            if self.closed:
                raise TermError(task.term.name, "the executor is closed")
            self._waiting.append(running)
            self._add_workers()
            self.changed.notify()
        return running

    def _add_workers(self) -> None:
        busy = sum(worker.running is not None for worker in self._workers)
        while len(self._workers) < min(busy + len(self._waiting), self._most):
            worker = _Worker(self)
            self._workers.append(worker)
            worker.thread.start()

    def new_actor(self) -> Any:
        """An actor, which may not have started yet, on any node."""
        ray = library()
        local = connection.open(self, self.max_workers)
        processors = ray.cluster_resources().get("CPU", 0)
        with self.changed:
            self._most = self.max_workers if local else max(int(processors), self.max_workers)
            self._add_workers()
            if self._evaluator is None:
                self._evaluator = ray.remote(TermEvaluator)
        # The executors that share a cluster of our own limit themselves, and would only wait for each other.
        return self._evaluator.options(num_cpus=0 if local else 1, scheduling_strategy="SPREAD").remote()

    def take(self, worker: "_Worker") -> "RunningRay | None":
        """The next task for a worker whose actor is alive; None at the end."""
        with self.changed:
            while worker.actor is not None and not self._waiting and not self.closed:
                self.changed.wait()
            if self.closed or worker.actor is None:
                return None
            worker.running = self._waiting.popleft()
            return worker.running

    def requeue(self, running: "RunningRay") -> None:
        """Queue a task once more, before the others."""
        with self.changed:
            if not self.closed and not running.done:
                self._waiting.appendleft(running)
                self.changed.notify()

    def forget(self, running: "RunningRay") -> None:
        """Never begin a task that waits; kill the actor of one that runs."""
        with self.changed:
            if running in self._waiting:
                self._waiting.remove(running)
            for worker in self._workers:
                if worker.running is running:
                    worker.kill()

    def leave(self, worker: "_Worker", error: Exception | None) -> None:
        """A worker ends. If it was the last, and could not get an actor, so do the tasks that wait."""
        with self.changed:
            self._workers.remove(worker)
            if error is None or self._workers:
                return
            waiting = list(self._waiting)
            self._waiting.clear()
        for running in waiting:
            message = f"could not start a worker on the cluster: {_reason(error)}"
            running.fail(WorkerLostError(running.name, message), error)

    def close(self) -> None:
        """Kill every actor; a cluster of our own ends, the caller's is left alone."""
        with self.changed:
            self.closed = True
            workers = list(self._workers)
            unfinished = [*self._waiting, *(worker.running for worker in workers if worker.running is not None)]
            self._waiting.clear()
            for worker in workers:
                worker.kill()
            self.changed.notify_all()
        for running in unfinished:
            running.fail(TermError(running.name, _CLOSED))
        for worker in workers:
            worker.thread.join(_ENDING)
        connection.close(self)


class _Worker:
    """An actor, and the thread that waits for it.

    It takes a task once its actor is alive: an actor that the cluster has no room for keeps no task waiting.
    """

    def __init__(self, pool: RayPool) -> None:
        self.pool = pool
        self.actor: Any = None
        self.address: str = ""
        self.used: bool = False
        """Whether the actor has evaluated a term: it may have died since, through no fault of the next."""
        self.running: RunningRay | None = None
        self.thread: threading.Thread = threading.Thread(target=self._work, name="penalties-ray", daemon=True)

    def _work(self) -> None:
        failure: Exception | None = None
        try:
            while self._ready():
                running = self.pool.take(self)
                if running is not None:
                    running.run(self)
                # Inputs and graphs must not live on here.
                self.running = running = None
        except Exception as error:
            failure = error
        self.kill()
        self.pool.leave(self, failure)

    def _ready(self) -> bool:
        """Wait for an actor that is alive; False at the end."""
        ray = library()
        for last in (False, True):
            if self.actor is not None or self.pool.closed:
                break
            actor = self.pool.new_actor()
            with self.pool.changed:
                self.actor, self.used = actor, False
                if self.pool.closed:
                    return False
            try:
                self.address = ray.get(actor.address.remote(), timeout=_LOADING)
            except ray.exceptions.RayError as error:
                self.kill()
                if not self.pool.closed and (last or isinstance(error, ray.exceptions.GetTimeoutError)):
                    raise
        return not self.pool.closed

    def kill(self) -> None:
        """End the actor, whatever it does."""
        with self.pool.changed:
            actor, self.actor = self.actor, None
        ray = library()
        if actor is not None and ray.is_initialized():
            # One of an earlier connection ended with that.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(actor, no_restart=True)


class RunningRay:
    """A task for an actor."""

    def __init__(self, pool: RayPool, task: Task, functions: Functions) -> None:
        """Pack it."""
        self.pool = pool
        self.name: str = task.term.name
        self.timeout: float = task.timeout
        self.idempotent: bool = task.term.idempotent
        self._function = functions.of(task.term)
        request, self._packed = request_of(task, self._function.digest)
        self._request = tuple(request)
        self._retried = False
        self._reply: Future[tuple[bytes, list[Any]]] = Future()

    @property
    def done(self) -> bool:
        """Whether it has a result, or failed, or was cancelled."""
        return self._reply.done()

    def result(self) -> Evaluation:
        """Wait until it is done, late or lost."""
        return opened(self.name, *self._reply.result())

    def cancel(self) -> None:
        """Kill its actor, or never begin."""
        with self.pool.changed:
            if not self.done:
                self.fail(TermError(self.name, "was cancelled"))
                self.pool.forget(self)

    def fail(self, error: TermError, cause: Exception | None = None) -> None:
        """It will have no result."""
        error.__cause__ = cause
        with self.pool.changed:
            if not self.done:
                self._reply.set_exception(error)

    def run(self, worker: _Worker) -> None:
        """Have it evaluated by a worker's actor, in the thread of that."""
        ray = library()
        actor = worker.actor
        alive = began = False
        try:
            if not ray.is_initialized():
                raise ConnectionError("the connection to the cluster was closed")
            # First without the function: is the actor still there, and does it have it?
            known, reply = ray.get(actor.load.remote(self._request, None), timeout=_LOADING)
            alive = True
            if not known:
                _, reply = ray.get(actor.load.remote(self._request, self._function.body), timeout=_LOADING)
            if reply is None:
                submitted = actor.run.remote(self._request, self._packed.arrays)
                began = True
                reply = ray.get(submitted, timeout=self.timeout)
                worker.used = True
        except ray.exceptions.GetTimeoutError:
            worker.kill()
            what = f"took more than {self.timeout:g} s" if began else f"was not loaded within {_LOADING:g} s"
            self.fail(TermTimeoutError(self.name, f"{what}; its worker on the cluster was killed"))
        except Exception as error:
            worker.kill()
            lost = not alive or isinstance(error, ray.exceptions.RayError)
            if not lost or isinstance(error, ray.exceptions.RayTaskError):
                # Neither a loss nor the term's doing: for example, a cluster with another release of penalties.
                self.fail(TermError(self.name, f"failed on the cluster: {_reason(error)}"), error)
            else:
                self._lost(f"its worker ({worker.address}) was lost", error, began, count=alive or not worker.used)
        else:
            self._settle(reply)

    def _settle(self, reply: tuple[bytes, list[np.ndarray[Any, Any]]]) -> None:
        # Copied: what is in Ray's memory goes with the cluster, and nobody may write to it.
        data, arrays = reply[0], [np.array(array) for array in reply[1]]
        with self.pool.changed:
            if not self.done:
                self._reply.set_result((data, arrays))

    def _lost(self, how: str, error: Exception, began: bool, *, count: bool) -> None:
        """Queue it again, once and where that does no harm; else fail."""
        if count and (self._retried or (began and not self.idempotent)):
            again = " twice" if self._retried else ""
            hint = "" if self.idempotent else "; idempotent=True lets it run again"
            self.fail(WorkerLostError(self.name, f"{how}{again}: {_reason(error)}{hint}"), error)
        else:
            self._retried |= count
            self.pool.requeue(self)


class TermEvaluator:
    """The inside of an actor: loads terms once, and evaluates them."""

    def __init__(self) -> None:
        """Set the process up."""
        # Arrays come through the memory of the host; an actor has no accelerator unless it was given one.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")

    def address(self) -> str:
        """Which process this is, for messages about its end."""
        return f"process {os.getpid()} on {library().util.get_node_ip_address()}"

    def load(self, parts: tuple[Any, ...], body: bytes | None) -> tuple[bool, Any]:
        """Load a term; returns whether its function is here, and the failure if it cannot be loaded."""
        request = Request(*parts)

        def given() -> bytes:
            if body is None:
                raise UnknownFunctionError
            return body

        try:
            load(request, given)
        except UnknownFunctionError:
            return False, None
        except TermError as error:
            return True, dumps(Failure.of(request.name, error))[:2]
        return True, None

    def run(self, parts: tuple[Any, ...], arrays: list[np.ndarray[Any, Any]]) -> tuple[bytes, list[Any]]:
        """Evaluate a term that is loaded; returns its evaluation, or the failure."""
        request = Request(*parts)
        return evaluate(load(request, lambda: b""), request, arrays)[:2]


def _reason(error: Exception) -> str:
    """The sentence of Ray's report that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].split(". ")[0].rstrip(".") if lines else type(error).__name__
