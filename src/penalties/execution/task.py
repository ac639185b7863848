"""The protocol of pools: a task is one term to evaluate, and a running task will have its evaluation."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ..pipeline.evaluation import Evaluation
from ..pipeline.term import Term
from .ambient import Modes

__all__ = ["Pool", "Running", "Task", "pool_of"]


class Task(NamedTuple):
    """A term, and everything that it takes to evaluate it."""

    term: Term
    inputs: Mapping[str, Any]
    """The inputs that the term reads; none of them is traced."""
    wrt: tuple[str, ...]
    """The inputs to differentiate at; if empty, no gradient is computed."""
    step: int | None
    state: Any
    timeout: float
    """In seconds. The clock starts when the function is loaded and about to run."""
    modes: Modes | None
    """The caller's modes of the array libraries; None for pools whose workers have modes of their own."""


class Running(Protocol):
    """A task that a pool has accepted."""

    def result(self) -> Evaluation:
        """Wait for the evaluation; raises `TermError` if the term failed, timed out or lost its worker."""
        ...

    def cancel(self) -> None:
        """Stop it as far as the pool can. Its result will not be read."""
        ...


class Pool(Protocol):
    """Workers that evaluate terms."""

    def start(self, task: Task) -> Running:
        """Accept a task, without waiting for it."""
        ...

    def close(self) -> None:
        """Stop every task and every worker, and leave nothing behind."""
        ...


def pool_of(term: Term) -> str:
    """The name of the pool that a term runs in."""
    return "async" if term.runs == "inline" and term.asynchronous else term.runs
