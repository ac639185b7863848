"""One call of a pipeline: evaluating its terms, announcing them, and what happens where one fails or rests."""

import itertools
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..backends import Backend, owner
from ..errors import GradientError, NonFiniteError, TermError
from ..telemetry import events
from .combine import Gradients
from .evaluate import compute, differentiate
from .kinds import is_mapping, is_row
from .output import LossOutput
from .reading import NOTHING, Row
from .state import Wrapper
from .targets import Targets
from .term import Term, Weight
from .tiles import in_tiles

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = ["Call", "Job", "Runner", "failed_row", "guarded", "numbered"]

_calls: Final = itertools.count(1)
_whole: Final[ContextVar[int | None]] = ContextVar("call", default=None)
"""The number of what the next call is a part of."""

_UNHEARD: Final[tuple[float, dict[str, Any]]] = (0.0, {})

Job: TypeAlias = tuple[Term, Weight, Any]
"""A term to be evaluated, its weight in this call, and its state before."""


@contextmanager
def numbered() -> Generator[int]:
    """The number of a whole that the pipeline's call in it shares."""
    number = next(_calls)
    token = _whole.set(number)
    try:
        yield number
    finally:
        _whole.reset(token)


class Call:
    """One call of a pipeline that takes gradients, or that somebody listens to."""

    __slots__ = ("asked", "began", "gradients", "heard", "metadata", "pipeline", "quiet", "running", "step")

    def __init__(self, pipeline: "Pipeline", step: Any, asked: tuple[Sequence[str] | None, bool] | None) -> None:
        """`asked` is what gradients are taken with respect to, and whether cosines are wanted; None without them."""
        self.pipeline: Pipeline = pipeline
        self.step: Any = step
        self.asked: tuple[Sequence[str] | None, bool] | None = asked
        self.gradients: Gradients | None = None
        self.running: Term | None = None

    def start(self, quiet: bool) -> None:
        """Announce the call, unless a compiler is looking or nobody listens."""
        self.quiet: bool = quiet
        # Who attaches in the middle of a call hears of the next one.
        self.heard: bool = len(events.handlers) > 0 and not quiet
        if not self.heard:
            return
        self.began: float = time.perf_counter()
        number = _whole.get()
        # What terms call themselves is no part of it.
        _whole.set(None)
        self.metadata: dict[str, Any] = {
            "call": next(_calls) if number is None else number,
            "pipeline": self.pipeline.name,
            "term_count": sum(term.enabled for term in self.pipeline.terms),
            "step": self.step,
            "track_grad_norms": self.asked is not None,
        }
        events.emit("pipeline.start", {"time": time.time(), "monotonic_time": time.monotonic()}, self.metadata)

    def stop(self, output: LossOutput) -> None:
        """Announce its output."""
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

    def failed(self, error: BaseException) -> None:
        """Announce that it failed, and at which term."""
        if self.heard:
            metadata = {**self.metadata, "error": error, "term": None if self.running is None else self.running.name}
            events.emit("pipeline.exception", {"duration": time.perf_counter() - self.began}, metadata)

    def differentiate(self, inputs: Mapping[str, Any], terms: Sequence[Term]) -> None:
        """From now on take gradients too, with respect to what was asked for, or what the terms read."""
        assert self.asked is not None, "called by value_and_grad"
        wrt, cosines = self.asked
        read = [name for term in terms if term.enabled for name in term.inputs.values()] if wrt is None else wrt
        targets = Targets.of("value_and_grad", inputs, read, asked=wrt is not None)
        self.gradients = Gradients(targets, cosines)

    def evaluate(self, term: Term, weight: Weight, inputs: Mapping[str, Any], state: Any, due: Any) -> tuple[Row, Any]:
        """A term's row and its new state, with the events of a term around it where somebody listens."""
        if not self.heard:
            return guarded(term, weight, inputs, self.step, state, self.gradients, self.quiet, due)
        began = self.term_began(term, weight)
        try:
            row, new = guarded(term, weight, inputs, self.step, state, self.gradients, self.quiet, due)
        except BaseException as error:
            self.term_broke(began, error)
            raise
        self.term_ended(began, row)
        return row, new

    def term_began(self, term: Term, weight: Weight) -> tuple[float, dict[str, Any]]:
        """Announce that a term begins; what this gives goes to `term_ended`."""
        if not self.heard:
            return _UNHEARD
        self.running = term
        metadata: dict[str, Any] = {
            "call": self.metadata["call"],
            "name": term.name,
            "weight": weight,
            "runs": term.runs,
            "async": term.asynchronous,
            "step": self.step,
        }
        events.emit("term.start", {"time": time.time()}, metadata)
        return time.perf_counter(), metadata

    def term_ended(self, began: tuple[float, dict[str, Any]], row: Row) -> None:
        """Announce what came of a term."""
        if not self.heard:
            return
        start, metadata = began
        _, value, weight, grad_norm, _, _, _, duration, error = row
        if error is not None:
            _term_failed(error, time.perf_counter() - start, metadata)
        else:
            measured = {"duration": duration, "value": value, "contribution": weight * value, "grad_norm": grad_norm}
            events.emit("term.stop", measured, metadata)
        self.running = None

    def term_broke(self, began: tuple[float, dict[str, Any]], error: BaseException) -> None:
        """Announce that a term ends the call."""
        start, metadata = began
        _term_failed(error, time.perf_counter() - start, metadata)

    def taken(
        self, term: Term, weight: Weight, value: Any, leaves: Sequence[Any] | None
    ) -> tuple[Any, Mapping[str, Any]]:
        """Add the gradient of a term that was evaluated before; its norms."""
        if self.gradients is None:
            return None, NOTHING
        return self.gradients.take(term.name, value, leaves, weight, 1.0)


Runner: TypeAlias = Callable[
    [Call, Sequence[Job], Mapping[str, Any]], tuple[Sequence[tuple[Row, Any]], "TermError | NonFiniteError | None"]
]
"""Evaluates the terms of a call: a row and a new state for each, and what to raise when the output is made."""


def _term_failed(error: BaseException, duration: float, metadata: Mapping[str, Any]) -> None:
    phase = "gradient" if isinstance(error, GradientError) else getattr(error, "phase", "value")
    events.emit("term.exception", {"duration": duration}, {**metadata, "phase": phase, "error": error})


def guarded(
    term: Term,
    weight: Weight,
    inputs: Mapping[str, Any],
    step: Any,
    state: Any,
    gradients: Gradients | None,
    quiet: bool,
    due: Any,
) -> tuple[Row, Any]:
    """A term's row and its new state, with an error in place of a value where the term fails and may be skipped."""
    start = 0.0 if quiet else time.perf_counter()
    grad_norm = grad_error = None
    grad_norms: Mapping[str, Any] = NOTHING
    try:
        if gradients is None:
            value, _, metrics, new = compute(term, inputs, step, state)
        else:
            counted = weight if due is True else gradients.targets.ops.where(due, weight, 0.0)
            tiled = None if quiet else in_tiles(term, inputs, gradients, counted)
            if tiled is not None:
                value, grad_norm, grad_norms = tiled
                metrics, new = NOTHING, None
            else:
                scale = gradients.scale(counted)
                result, leaves, grad_error = differentiate(
                    term, inputs, gradients.targets, step=step, state=state, scale=scale
                )
                value, _, metrics, new = result
                if due is not True and leaves is not None:
                    # Where it rests, whatever its gradient is there.
                    leaves = [None if leaf is None else gradients.targets.ops.where(due, leaf, 0.0) for leaf in leaves]
                grad_norm, grad_norms = gradients.take(term.name, value, leaves, counted, scale)
    except TermError as error:
        if term.on_error == "raise":
            raise
        return failed_row(term, weight, error), None
    if due is not True:
        ops = owner(due)
        assert ops is not None, "a plain step was decided before"
        value = ops.where(due, value, 0.0)
        grad_norm = None if grad_norm is None else ops.where(due, grad_norm, 0.0)
        grad_norms = {name: ops.where(due, norm, 0.0) for name, norm in grad_norms.items()}
        if new is not None:
            # A running mean that has not begun yet is NaN, and begins at the next value.
            before = math.nan if state is None and isinstance(term.fn, Wrapper) else state
            new = new if before is None else _chosen(ops, due, new, before)
    duration = None if quiet else time.perf_counter() - start
    return (term.name, value, weight, grad_norm, grad_error, grad_norms, metrics, duration, None), new


def failed_row(term: Term, weight: Weight, error: BaseException) -> Row:
    """The row of a term that has an error in place of a value."""
    # Without the frames, which would keep the inputs alive as long as the output; one that is raised shows where.
    chain: list[BaseException | None] = [error] if term.on_error == "skip" else []
    while chain:
        one = chain.pop()
        if one is not None:
            one.__traceback__ = None
            chain += [one.__cause__, None if one.__context__ is one.__cause__ else one.__context__]
    return term.name, None, weight, None, None, NOTHING, NOTHING, None, error


def _chosen(ops: Backend, due: Any, new: Any, before: Any) -> Any:
    """The new state where due, array by array."""
    if is_mapping(new):
        return {
            key: _chosen(ops, due, part, before[key] if is_mapping(before) else before) for key, part in new.items()
        }
    if is_row(new):
        kind: Any = type(new)
        others = before if is_row(before) else [before] * len(new)
        parts = [_chosen(ops, due, part, other) for part, other in zip(new, others, strict=True)]
        return getattr(kind, "_make", kind)(parts)
    return new if owner(new) is None else ops.where(due, new, before)
