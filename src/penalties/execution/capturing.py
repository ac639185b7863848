"""Tensors that a term takes from elsewhere than its inputs."""

from .. import trees
from ..backends import owner
from ..errors import TermError
from ..pipeline.evaluation import Evaluation
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
    """Raise if the value of an evaluation depends on a tensor that requires a gradient and is not an input."""
    if not getattr(evaluation.value, "requires_grad", False):
        return
    ops = owner(evaluation.value)
    assert ops is not None, "a value is an array"
    inputs = [array for array in trees.arrays(list(task.inputs.values())) if owner(array) is ops]
    if ops.captures(evaluation.value, inputs):
        raise captures(task.term.name, "a tensor")
