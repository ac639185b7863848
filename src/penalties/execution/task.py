"""One term to be evaluated elsewhere, and the promise of its evaluation."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ..pipeline.evaluation import Evaluation
from ..pipeline.term import Term
from .ambient import Modes

__all__ = ["Place", "Running", "Task", "place_of"]


class Task(NamedTuple):
    """What a place is given: a term and what it needs, complete."""

    term: Term
    inputs: Mapping[str, Any]
    """Those that the term reads, none of them traced."""
    wrt: tuple[str, ...]
    """The inputs that its gradient is taken at; none leaves it out."""
    step: int | None
    state: Any
    timeout: float
    """Seconds, from when the function is loaded and runs."""
    modes: Modes | None
    """Those of the libraries that the caller was in; None for places that have their own."""


class Running(Protocol):
    """A task that a place has taken on."""

    def result(self) -> Evaluation:
        """Wait for the evaluation; `TermError` where the term failed, was late, or its worker was lost."""
        ...

    def cancel(self) -> None:
        """Stop it as far as this place can: nobody will ask for its result."""
        ...


class Place(Protocol):
    """Where terms run."""

    def start(self, task: Task) -> Running:
        """Begin, and give back at once."""
        ...

    def close(self) -> None:
        """Stop everything that runs here, and leave nothing behind."""
        ...


def place_of(term: Term) -> str:
    """The name of the place where a term runs."""
    return "async" if term.runs == "inline" and term.asynchronous else term.runs
