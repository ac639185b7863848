"""Tensors that a term takes from elsewhere than its inputs."""

from ..backends import owner
from ..errors import TermError
from ..pipeline.evaluation import Evaluation
from ..pipeline.inputs import arrays_in
from .task import Task

__all__ = ["captures", "check_captures"]


def captures(name: str, what: str) -> TermError:
    """The error for a term that would not train what it holds."""
    return TermError(
        name,
        f"its function holds {what} that requires a gradient, which a term that runs elsewhere cannot train; "
        "pass it as an input, or detach it",
    )


def check_captures(task: Task, evaluation: Evaluation) -> None:
    """Refuse an evaluation whose value hangs on a tensor that is none of the inputs."""
    ops = owner(evaluation.value)
    if ops is not None and ops.captures(
        evaluation.value, [array for _, array in arrays_in(list(task.inputs.values()))]
    ):
        raise captures(task.term.name, "a tensor")
