"""The events of a call and of its terms."""

import itertools
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import GradientError
from ..telemetry import events
from .evaluation import Evaluation
from .output import LossOutput
from .output.reading import is_traced
from .plan import Job

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = ["Announcer", "Started", "are_heard", "note", "noted", "numbered", "unannounced"]

_calls: Final = itertools.count(1)
_outer: Final[ContextVar[int | None]] = ContextVar("call", default=None)
"""The number of the operation that the next call is part of."""
_part: Final[ContextVar[bool]] = ContextVar("part", default=False)
"""Whether calls are parts of a step, which is announced as a whole."""
_noted: Final[ContextVar[dict[str, Any] | None]] = ContextVar("noted", default=None)
"""Where a call inside a transform, which announces nothing, leaves what it is."""


@contextmanager
def numbered() -> Generator[int]:
    """A number for an operation, which the pipeline's call inside it shares."""
    number = next(_calls)
    token = _outer.set(number)
    try:
        yield number
    finally:
        _outer.reset(token)


@contextmanager
def unannounced(pipeline: "Pipeline | None" = None, step: Any = None) -> Generator[None]:
    """Calls in here are parts of a step, and emit nothing; with the pipeline, an exception is announced as its own."""
    token = _part.set(True)
    try:
        yield
    except BaseException as error:
        _part.reset(token)
        if pipeline is not None:
            announcer = Announcer(traced=False)
            announcer.start(pipeline, step, gradients=False)
            announcer.running = getattr(error, "term", None)
            announcer.fail(error)
        raise
    else:
        _part.reset(token)


@contextmanager
def noted() -> Generator[dict[str, Any]]:
    """The name of the pipeline and the step of the last call in here, to announce it once there are values."""
    found: dict[str, Any] = {}
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def note(pipeline: "Pipeline", step: Any) -> None:
    """Note a call that a transform of JAX traces."""
    found = _noted.get()
    if found is not None:
        found.update(pipeline=pipeline.name, step=None if is_traced(step) else step)


def are_heard() -> bool:
    """Whether a handler is attached, and the call is announced by itself."""
    return len(events.handlers) > 0 and not _part.get()


class Started(NamedTuple):
    """A term that was announced as started."""

    at: float
    metadata: Mapping[str, Any]


class Announcer:
    """Announces one call. Without handlers, and inside a compiler, it does nothing.

    A handler that is attached in the middle of a call receives events from the next one on.
    """

    __slots__ = ("began", "heard", "metadata", "running", "terms_heard")

    def __init__(self, *, traced: bool) -> None:
        """Nothing is announced yet."""
        self.heard: bool = not traced and are_heard()
        self.terms_heard: bool = self.heard and events.are_heard("term.start", "term.stop", "term.exception")
        self.running: str | None = None
        """The term that is being evaluated, or that failed."""

    @property
    def call(self) -> int | None:
        """The number of the call; None without handlers."""
        return self.metadata["call"] if self.heard else None

    def start(self, pipeline: "Pipeline", step: Any, *, gradients: bool) -> None:
        """The call begins."""
        if not self.heard:
            return
        self.began: float = time.perf_counter()
        number = _outer.get()
        # Pipelines that terms call themselves are not part of it.
        _outer.set(None)
        self.metadata: dict[str, Any] = {
            "call": next(_calls) if number is None else number,
            "pipeline": pipeline.name,
            "term_count": sum(term.enabled for term in pipeline.terms),
            "step": step,
            "track_grad_norms": gradients,
        }
        events.emit("pipeline.start", {"time": time.time(), "monotonic_time": time.monotonic()}, self.metadata)

    def whole(
        self, pipeline: "Pipeline", step: Any, output: LossOutput, seconds: float, *, gradients: bool = False
    ) -> None:
        """A step that was evaluated in parts, as one call that took so long and returns this."""
        self.start(pipeline, step, gradients=gradients)
        if not self.heard:
            return
        self.began -= seconds
        for index, term in enumerate(pipeline.all_terms):
            if term.name in output.names:
                found = output[term.name]
                started = self.start_term(Job(index, term, found.weight))
                evaluation = Evaluation(found.value, grad_norm=found.grad_norm, duration=found.duration)
                evaluation.error = found.error
                self.stop_term(started, evaluation)
        self.stop(output)

    def stop(self, output: LossOutput) -> None:
        """The call returns this."""
        if not self.heard:
            return
        measured = {
            "duration": time.perf_counter() - self.began,
            "monotonic_time": time.monotonic(),
            "loss_total": output.total,
            "regularizer_total": output.regularizer_total,
            "total_grad_norm": output.total_grad_norm,
        }
        events.emit("pipeline.stop", measured, {**self.metadata, "output": output})

    def fail(self, error: BaseException) -> None:
        """The call raises this."""
        if self.heard:
            metadata = {**self.metadata, "error": error, "term": self.running}
            events.emit("pipeline.exception", {"duration": time.perf_counter() - self.began}, metadata)

    def start_term(self, job: Job) -> Started | None:
        """A term begins; pass what this returns to `stop_term`."""
        self.running = job.term.name
        if not self.terms_heard:
            return None
        metadata: dict[str, Any] = {
            "call": self.metadata["call"],
            "name": job.term.name,
            "weight": job.weight,
            "runs": job.term.runs,
            "async": job.term.asynchronous,
            "step": self.metadata["step"],
        }
        events.emit("term.start", {"time": time.time()}, metadata)
        return Started(time.perf_counter(), metadata)

    def stop_term(self, started: Started | None, evaluation: Evaluation) -> None:
        """A term was evaluated, or failed."""
        self.running = None
        if started is None:
            return
        if evaluation.error is not None:
            self.fail_term(started, evaluation.error)
        else:
            measured = {
                "duration": evaluation.duration,
                "value": evaluation.value,
                "contribution": started.metadata["weight"] * evaluation.value,
                "grad_norm": evaluation.grad_norm,
            }
            events.emit("term.stop", measured, started.metadata)

    def fail_term(self, started: Started | None, error: BaseException) -> None:
        """A term raised this."""
        if started is not None:
            phase = "gradient" if isinstance(error, GradientError) else getattr(error, "phase", "value")
            measured = {"duration": time.perf_counter() - started.at}
            events.emit("term.exception", measured, {**started.metadata, "phase": phase, "error": error})
