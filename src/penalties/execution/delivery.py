"""From an evaluation made elsewhere to the caller's graph."""

from collections.abc import Mapping, Sequence
from typing import Any

from .. import trees
from ..backends import Backend, owner
from ..errors import TermError
from ..pipeline.evaluation import Evaluation
from ..pipeline.targets import Targets, is_followed
from ..pipeline.term import Term

__all__ = ["delivered", "wanted"]


def wanted(term: Term, inputs: Mapping[str, Any], targets: Targets | None) -> tuple[str, ...]:
    """The inputs of a term that its gradient is needed at: those that were requested, and those that may be trained."""
    if not term.differentiable:
        return ()
    return tuple(
        name
        for name, nest in inputs.items()
        if (targets is not None and targets.touched_by(name)) or any(map(is_followed, trees.arrays(nest)))
    )


def delivered(term: Term, inputs: Mapping[str, Any], evaluation: Evaluation, targets: Targets | None) -> Evaluation:
    """The evaluation as the caller would have made it: its value on the caller's graph, its gradient at the targets."""
    value = _beside(evaluation.value, inputs)
    ops = owner(value)
    assert ops is not None, "a value is an array"
    home = Evaluation(value, None, evaluation.metrics, evaluation.state, evaluation.duration)
    if not term.differentiable:
        return home
    gradient = evaluation.gradient or {}
    parts = [part for name in gradient for part in _parts(ops, term, name, inputs[name], gradient[name])]
    arrays = [array for name in gradient for array in trees.arrays(inputs[name])]
    trained = [
        i for i, (array, part) in enumerate(zip(arrays, parts, strict=True)) if part is not None and is_followed(array)
    ]
    pairs = [(arrays[i], parts[i]) for i in trained]
    if targets is None:
        home.value, home.grad_error = _stitched(ops, value, pairs), evaluation.grad_error
        return home
    indices = [index for name in gradient for index in targets.indices_of(term.name, name, inputs[name])]
    if ops.LIBRARY == "JAX" or any(indices[i] < 0 for i in trained):
        # PyTorch's total is stitched as a whole, by the sum of gradients, where only targets are trained.
        home.value = _stitched(ops, value, pairs)
    leaves = targets.placed(zip(indices, parts, strict=True))
    if any(leaf is not None for leaf in leaves):
        return targets.measured(home, leaves)
    home.grad_error = evaluation.grad_error or targets.unread
    return home


def _parts(ops: Backend, term: Term, name: str, nest: Any, gradient: Any) -> list[Any]:
    """The gradient of each array of an input; None where it has none."""
    found = trees.pair(nest, gradient)
    if sum(part is not None for part in found) < len(list(trees.arrays(gradient))):
        raise TermError(
            term.name,
            f'its input "{name}" holds arrays in an iterable that is neither a sequence nor a mapping, and the term '
            "ran elsewhere; pass them in a list or tuple",
            "gradient",
        )
    parts: list[Any] = []
    for leaf, part in zip(trees.arrays(nest), found, strict=True):
        if part is None or owner(leaf) is not ops:
            parts.append(None)
            continue
        if owner(part) is not ops or ops.device(part) != ops.device(leaf):
            part = ops.as_array(part, leaf)
        parts.append(ops.stop_gradient(part))
    return parts


def _stitched(ops: Backend, value: Any, trained: Sequence[tuple[Any, Any]]) -> Any:
    if not trained:
        return ops.stop_gradient(value)
    return ops.stitch(ops.stop_gradient(value), [leaf for leaf, _ in trained], [part for _, part in trained])


def _beside(value: Any, inputs: Mapping[str, Any]) -> Any:
    """The value on the device of the inputs, where it was computed on another."""
    ops = owner(value)
    assert ops is not None, "a value is an array"
    for array in trees.arrays(list(inputs.values())):
        if owner(array) is ops:
            return value if ops.device(value) == ops.device(array) else ops.as_array(value, array)
    return value
