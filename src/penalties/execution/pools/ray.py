"""Terms on a Ray cluster: for when one machine is not enough.

Nothing that loads NumPy is imported here: actors load this module first, and limit native threads before that.
"""

import contextlib
import importlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from ...errors import TermError, TermTimeoutError, WorkerLostError, said
from ..native import cap_threads
from ..ray_local import library, local

if TYPE_CHECKING:
    from ...pipeline.evaluation import Evaluation
    from ..portable import Packed
    from ..task import Task
    from ..worker import Reply, Request

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
        from ..bodies import Bodies

        self.max_workers = max_workers
        self.closed: bool = False
        self.changed: threading.Condition = threading.Condition()
        self._bodies = Bodies()
        self._waiting: deque[RunningRay] = deque()
        self._slots: list[_Slot] = []
        self._evaluator: Any = None
        # Until the first has connected: then the cluster is known.
        self._most = 1

    def start(self, task: "Task") -> "RunningRay":
        """Queue it; an actor begins as soon as one is free."""
        library()
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
        ray = library()
        ours = local.connect(self, self.max_workers)
        processors = ray.cluster_resources().get("CPU", 0)
        with self.changed:
            # Nobody else is on a cluster of our own: there the executors, which limit themselves, need no turns.
            self._most = self.max_workers if ours else max(int(processors), self.max_workers)
            self._fill()
            if self._evaluator is None:
                self._evaluator = ray.remote(TermEvaluator)
        return self._evaluator.options(num_cpus=0 if ours else 1, scheduling_strategy="SPREAD").remote()

    def take(self, slot: "_Slot") -> "RunningRay | None":
        """The next task for a slot whose actor is alive; None at the end."""
        with self.changed:
            while slot.actor is not None and not self._waiting and not self.closed:
                self.changed.wait()
            if self.closed or slot.actor is None:
                return None
            slot.running = self._waiting.popleft()
            return slot.running

    def again(self, running: "RunningRay") -> None:
        """Queue a task once more, before the others."""
        with self.changed:
            if not self.closed and not running.done:
                self._waiting.appendleft(running)
                self.changed.notify()

    def forget(self, running: "RunningRay") -> None:
        """Never begin a task that waits, and kill the actor of one that runs."""
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
            message = f"no worker could be had on the cluster: {_reason(error)}"
            running.fail(WorkerLostError(running.name, message), error)

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
        local.leave(self)


class _Slot:
    """An actor, and the thread that waits for it.

    It takes a task when its actor is alive: one that the cluster has no room for keeps nobody waiting.
    """

    def __init__(self, place: Cluster) -> None:
        self.place = place
        self.actor: Any = None
        self.address: str = ""
        self.used: bool = False
        """Whether its actor has evaluated a term: it may have died since without a term's doing."""
        self.running: RunningRay | None = None
        self.thread: threading.Thread = threading.Thread(target=self._work, name="penalties-ray", daemon=True)

    def _work(self) -> None:
        failure: Exception | None = None
        try:
            while self._ready():
                running = self.place.take(self)
                if running is not None:
                    running.run(self)
                # Nothing of a task outlives it here.
                self.running = running = None
        except Exception as error:
            failure = error
        self.kill()
        self.place.leave(self, failure)

    def _ready(self) -> bool:
        """Wait for an actor that is alive; False at the end."""
        ray = library()
        for last in (False, True):
            if self.actor is not None or self.place.closed:
                break
            actor = self.place.new_actor()
            with self.place.changed:
                self.actor, self.used = actor, False
                if self.place.closed:
                    return False
            try:
                self.address = ray.get(actor.address.remote(), timeout=_LOADING)
            except ray.exceptions.RayError as error:
                self.kill()
                if not self.place.closed and (last or isinstance(error, ray.exceptions.GetTimeoutError)):
                    raise
        return not self.place.closed

    def kill(self) -> None:
        """End the actor, whatever it does."""
        with self.place.changed:
            actor, self.actor = self.actor, None
        ray = library()
        if actor is not None and ray.is_initialized():
            # One of an earlier connection went with that.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(actor, no_restart=True)


class RunningRay:
    """A task for an actor."""

    def __init__(self, place: Cluster, task: "Task", key: int, body: bytes) -> None:
        """Make it what can be sent."""
        from ..portable import dumps
        from ..worker import Request, settings_of

        self.place = place
        self.name: str = task.term.name
        self.timeout: float = task.timeout
        self.idempotent: bool = task.term.idempotent
        self._body = body
        self._retried = False
        self._reply: Future[tuple[bytes, list[Packed]]] = Future()
        try:
            data, arrays = dumps((dict(task.inputs), task.wrt, task.step, task.state))
        except Exception as error:
            raise TermError(self.name, f"its inputs cannot be sent to a cluster: {said(error)}") from error
        self._request = Request(self.name, key, None, data, arrays, None, settings_of(arrays), ("", 0))

    @property
    def done(self) -> bool:
        """Whether it has a result, or failed, or was cancelled."""
        return self._reply.done()

    def result(self) -> "Evaluation":
        """Wait until it is done, late or lost."""
        from ...pipeline.evaluation import Evaluation
        from ..portable import loads
        from ..worker import Failure

        data, arrays = self._reply.result()
        try:
            found = loads(data, arrays)
        except Exception as error:
            message = f"what it returned cannot be read here: {said(error)}"
            raise TermError(self.name, message) from error
        if isinstance(found, Failure):
            raise found.error()
        return Evaluation(*found)

    def cancel(self) -> None:
        """Kill its actor, or never begin."""
        with self.place.changed:
            if not self.done:
                self.fail(TermError(self.name, "was cancelled"))
                self.place.forget(self)

    def fail(self, error: TermError, cause: Exception | None = None) -> None:
        """There is nothing more to wait for."""
        error.__cause__ = cause
        self._settle(error)

    def _settle(self, found: "tuple[bytes, list[Packed]] | TermError") -> None:
        with self.place.changed:
            if self.done:
                return
            if isinstance(found, TermError):
                self._reply.set_exception(found)
            else:
                self._reply.set_result(found)

    def run(self, slot: _Slot) -> None:
        """Have it evaluated by the actor of a slot, in the thread of that."""
        ray = library()
        actor = slot.actor
        there = began = False
        try:
            if not ray.is_initialized():
                raise ConnectionError("the connection to the cluster was closed")
            # First without the term: whether the actor is still there, and whether it has it.
            asked = self._request._replace(data=b"", arrays=())
            reply = ray.get(actor.load.remote(asked), timeout=_LOADING)
            there = True
            if reply is not None and not reply.known:
                reply = ray.get(actor.load.remote(asked._replace(body=self._body)), timeout=_LOADING)
            if reply is None:
                promised = actor.run.remote(self._request)
                began = True
                reply = ray.get(promised, timeout=self.timeout)
                slot.used = True
        except ray.exceptions.GetTimeoutError:
            slot.kill()
            what = f"took more than {self.timeout:g} s" if began else f"was not loaded within {_LOADING:g} s"
            self.fail(TermTimeoutError(self.name, f"{what}; its worker on the cluster was killed"))
        except Exception as error:
            slot.kill()
            gone = not there or isinstance(error, ray.exceptions.RayError)
            if not gone or isinstance(error, ray.exceptions.RayTaskError):
                # Neither a loss nor the term's doing: a cluster with another release of penalties, say.
                self.fail(TermError(self.name, f"failed on the cluster: {_reason(error)}"), error)
            else:
                self._lost(f"its worker ({slot.address}) was lost", error, began, count=there or not slot.used)
        else:
            # Copied: what lies in Ray's memory goes with the cluster.
            self._settle((reply.data, _owned(reply.arrays)))

    def _lost(self, how: str, error: Exception, began: bool, *, count: bool) -> None:
        """Queue it again, once and where that does no harm; else fail."""
        if count and (self._retried or (began and not self.idempotent)):
            again = " twice" if self._retried else ""
            hint = "" if self.idempotent else "; idempotent=True lets it run again"
            self.fail(WorkerLostError(self.name, f"{how}{again}: {_reason(error)}{hint}"), error)
        else:
            # An actor that died while it had nothing to do is none of the term's losses.
            self._retried |= count
            self.place.again(self)


class TermEvaluator:
    """The inside of an actor: loads terms once, and evaluates them."""

    def __init__(self) -> None:
        """Set the process up."""
        cap_threads(1)
        # Arrays come through the memory of the host; an actor has no accelerator unless it was given one.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")

    def address(self) -> str:
        """Which process this is, for who reads of its end."""
        return f"process {os.getpid()} on {library().util.get_node_ip_address()}"

    def load(self, request: "Request") -> "Reply | None":
        """Load a term and the libraries of its arrays; None where all is there, else a reply that says what is not."""
        from ..portable import dumps
        from ..worker import Failure, Reply, loaded

        try:
            term = loaded(request)
            for library in request.settings:
                importlib.import_module(library)
        except Exception as error:
            message = f"could not be loaded on the cluster: {said(error)}"
            failed = TermError(request.name, message)
            failed.__cause__ = error
            return Reply(dumps(Failure.of(request.name, failed))[0], ())
        return Reply(b"", (), known=False) if term is None else None

    def run(self, request: "Request") -> "Reply":
        """Evaluate a term that is loaded, and give back what it gave or why it did not."""
        from ..portable import dumps
        from ..worker import Failure, Reply, applied, evaluated, loaded

        process = os.getpid()
        term = loaded(request)
        assert term is not None, "loaded before"
        request = request._replace(arrays=_owned(request.arrays))
        try:
            with applied(request.settings):
                data, arrays = evaluated(term, request, [])
        except BaseException as error:
            # A term that calls sys.exit() does not end its actor.
            data, arrays = dumps(Failure.of(request.name, error))[0], []
        finally:
            # A term that forked: its child must not go on as a second actor.
            if os.getpid() != process:
                os._exit(0)
        return Reply(data, arrays)


def _owned(arrays: "Sequence[Any]") -> "list[Packed]":
    """Arrays that may be written to: those that come from Ray's memory may not."""
    return [packed if packed.data.flags.writeable else packed._replace(data=packed.data.copy()) for packed in arrays]


def _reason(error: Exception) -> str:
    """The sentence of Ray's report that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].split(". ")[0].rstrip(".") if lines else type(error).__name__
