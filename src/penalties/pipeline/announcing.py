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
from .plan import Job

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = ["Announcer", "Started", "numbered"]

_calls: Final = itertools.count(1)
_outer: Final[ContextVar[int | None]] = ContextVar("call", default=None)
"""The number of the operation that the next call is part of."""


@contextmanager
def numbered() -> Generator[int]:
    """A number for an operation, which the pipeline's call inside it shares."""
    number = next(_calls)
    token = _outer.set(number)
    try:
        yield number
    finally:
        _outer.reset(token)


class Started(NamedTuple):
    """A term that was announced as started."""

    at: float
    metadata: Mapping[str, Any]


class Announcer:
    """Announces one call. Without handlers, and inside a compiler, it does nothing.

    A handler that is attached in the middle of a call hears of the next one.
    """

    __slots__ = ("began", "heard", "metadata", "running", "terms_heard")

    def __init__(self, *, traced: bool) -> None:
        """Nothing is announced yet."""
        self.heard: bool = not traced and len(events.handlers) > 0
        self.terms_heard: bool = self.heard and events.are_heard("term.start", "term.stop", "term.exception")
        self.running: str | None = None
        """The term that is being evaluated, or that failed."""

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
