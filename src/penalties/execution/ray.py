"""Terms on a Ray cluster: for when one machine is not enough.

Nothing that loads NumPy is imported here: actors load this module first, and limit native threads before that.
"""

import importlib
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingLibraryError, TermError, TermTimeoutError, WorkerLostError
from .native import cap_threads

if TYPE_CHECKING:
    from ..pipeline.evaluation import Evaluation
    from .portable import Packed
    from .task import Task
    from .worker import Reply, Request

__all__ = ["Cluster", "TermEvaluator"]

_LOADING: Final = 300.0
"""Seconds that an actor may take to start, and to load a term, before its caller is told."""

_ENDING: Final = 60.0
"""Seconds that closing waits for a thread: Ray itself may be starting in it."""

_CLOSED: Final = "the executor was closed before it was done"


class Cluster:
    """Actors that evaluate terms. One that is late or is lost is replaced, and its neighbours live on.

    The cluster is the one that the caller is connected to (`ray.init(address=…)`), else the one that the environment
    names (`RAY_ADDRESS`), else one on this machine, which ends with the executor. penalties, and the modules that a
    term's function comes from, have to be installed on a cluster's machines.

    As many actors run as there are terms to run at once, each on a processor of its own until the executor is closed:
    at most as many as the cluster has, since the number of this machine's says nothing about it, or `max_workers`
    where that is more, since actors that wait for room are what makes a cluster grow that can.
    """

    def __init__(self, max_workers: int) -> None:
        """Actors start with the first term, and so does a cluster where there is none."""
        from .bodies import Bodies

        self.max_workers = max_workers
        self.closed = False
        self.changed = threading.Condition()
        self._bodies = Bodies()
        self._waiting: deque[RunningRay] = deque()
        self._slots: list[_Slot] = []
        # Until the first has connected: then the cluster is known.
        self._most = 1
        self._processors = 1

    def start(self, task: "Task") -> "RunningRay":
        """Queue it; an actor begins as soon as one is free."""
        _library()
        key, body = self._bodies.of(task.term)
        running = RunningRay(self, task, key, body)
        with self.changed:
            if self.closed:
                raise TermError(task.term.name, "the executor is closed")
            self._waiting.append(running)
            self._fill()
            self.changed.notify()
        return running

    def _fill(self) -> None:
        """Add slots while there is more to do than there are."""
        busy = sum(slot.running is not None for slot in self._slots)
        while len(self._slots) < min(busy + len(self._waiting), self._most):
            slot = _Slot(self)
            self._slots.append(slot)
            slot.thread.start()

    def new_actor(self) -> Any:
        """An actor that may not have started yet, on any node."""
        ray = _library()
        local = _local.connect(self, self.max_workers)
        processors = ray.cluster_resources().get("CPU", 0)
        with self.changed:
            # Nobody else is on a cluster of our own: there the executors, which limit themselves, need no turns.
            self._most = self.max_workers if local else max(int(processors), self.max_workers)
            self._fill()
        remote = ray.remote(num_cpus=0 if local else 1, scheduling_strategy="SPREAD")
        return remote(TermEvaluator).remote()

    def take(self, slot: "_Slot") -> "RunningRay | None":
        """The next task for a slot whose actor is alive; None at the end."""
        with self.changed:
            slot.running = None
            while slot.actor is not None and not self._waiting and not self.closed:
                self.changed.wait()
            if self.closed or slot.actor is None:
                return None
            slot.running = self._waiting.popleft()
            return slot.running

    def again(self, running: "RunningRay") -> None:
        """Queue a task once more, before the others."""
        with self.changed:
            if not self.closed:
                self._waiting.appendleft(running)
                self.changed.notify()

    def cancel(self, running: "RunningRay") -> None:
        """Forget a task that waits, and kill the actor of one that runs."""
        with self.changed:
            if running in self._waiting:
                self._waiting.remove(running)
            for slot in self._slots:
                if slot.running is running:
                    slot.kill()

    def leave(self, slot: "_Slot", error: Exception | None) -> None:
        """A slot ends; where it was the last, and could not have an actor, so do the tasks that wait."""
        with self.changed:
            self._slots.remove(slot)
            if error is None or self._slots:
                return
            waiting = list(self._waiting)
            self._waiting.clear()
        for running in waiting:
            lost = WorkerLostError(running.name, f"no worker could be had on the cluster: {_reason(error)}")
            lost.__cause__ = error
            running.fail(lost)

    def close(self) -> None:
        """Kill every actor; a cluster of our own ends, one of the caller's is left alone."""
        with self.changed:
            self.closed = True
            slots = list(self._slots)
            unfinished = [*self._waiting, *(slot.running for slot in slots if slot.running is not None)]
            self._waiting.clear()
            for slot in slots:
                slot.kill()
            self.changed.notify_all()
        for running in unfinished:
            running.fail(TermError(running.name, _CLOSED))
        for slot in slots:
            slot.thread.join(_ENDING)
        _local.leave(self)


class _Slot:
    """An actor, and the thread that waits for it.

    It takes a task when its actor is alive: one that the cluster has no room for keeps nobody waiting.
    """

    def __init__(self, place: Cluster) -> None:
        self.place = place
        self.actor: Any = None
        self.address = ""
        self.used = False
        """Whether its actor has evaluated a term: it may have died since without a term's doing."""
        self.running: RunningRay | None = None
        self.thread = threading.Thread(target=self._work, name="penalties-ray", daemon=True)

    def _work(self) -> None:
        failure: Exception | None = None
        try:
            while self._ready():
                running = self.place.take(self)
                if running is not None:
                    running.run(self)
                # Nothing of a task outlives it here.
                del running
        except Exception as error:
            failure = error
        self.kill()
        self.place.leave(self, failure)

    def _ready(self) -> bool:
        """Wait for an actor that is alive; False at the end."""
        ray = _library()
        for last in (False, True):
            if self.place.closed:
                return False
            if self.actor is not None:
                return True
            actor = self.place.new_actor()
            with self.place.changed:
                self.actor, self.used = actor, False
                if self.place.closed:
                    return False
            try:
                self.address = ray.get(actor.address.remote(), timeout=_LOADING)
            except ray.exceptions.RayError as error:
                self.kill()
                if self.place.closed:
                    return False
                if last or isinstance(error, ray.exceptions.GetTimeoutError):
                    raise
        return True

    def kill(self) -> None:
        """End the actor, whatever it does."""
        with self.place.changed:
            actor, self.actor = self.actor, None
        ray = _library()
        if actor is not None and ray.is_initialized():
            ray.kill(actor, no_restart=True)


class RunningRay:
    """A task for an actor."""

    def __init__(self, place: Cluster, task: "Task", key: int, body: bytes) -> None:
        """Make it what can be sent."""
        from .portable import dumps
        from .processes import _settings_of  # pyright: ignore[reportPrivateUsage]
        from .worker import Request

        self.place = place
        self.name = task.term.name
        self.timeout = task.timeout
        self.idempotent = task.term.idempotent
        self._body = body
        self._retried = False
        self._reply: Future[Reply] = Future()
        try:
            data, arrays = dumps((dict(task.inputs), task.wrt, task.step, task.state))
        except Exception as error:
            raise TermError(
                self.name, f"its inputs cannot be sent to a cluster: {type(error).__name__}: {error}"
            ) from error
        self._request = Request(self.name, key, None, data, arrays, None, _settings_of(arrays), ("", 0))

    def result(self) -> "Evaluation":
        """Wait until it is done, late or lost."""
        from ..pipeline.evaluation import Evaluation
        from .portable import loads

        reply = self._reply.result()
        found = loads(reply.data, _owned(reply.arrays))
        if isinstance(found, Evaluation):
            return found
        raise found.error()

    def cancel(self) -> None:
        """Kill its actor, or never begin."""
        self.fail(TermError(self.name, "was cancelled"))
        self.place.cancel(self)

    def fail(self, error: TermError) -> None:
        """There is nothing more to wait for."""
        with self.place.changed:
            if not self._reply.done():
                self._reply.set_exception(error)

    def run(self, slot: _Slot) -> None:
        """Have it evaluated by the actor of a slot, in the thread of that."""
        errors = _library().exceptions
        # What has been reached, and so what is lost where the actor is.
        reached = "nothing"
        try:
            reached = ""
        except errors.RayError:
            pass
        raise NotImplementedError(reached)
