"""From an evaluation made elsewhere to the caller's graph."""

from collections.abc import Mapping, Sequence
from typing import Any

from .. import trees
from ..backends import Backend, owner
from ..pipeline.evaluation import Evaluation
from ..pipeline.targets import Targets
from ..pipeline.term import Term

__all__ = ["delivered", "wanted"]


def wanted(term: Term, inputs: Mapping[str, Any], targets: Targets | None) -> tuple[str, ...]:
    """The inputs of a term that its gradient is needed at: those that were requested, and those that may be trained."""
    if not term.differentiable:
        return ()
    requested: set[int] = set() if targets is None else {id(leaf) for leaf in targets.leaves}
    return tuple(
        name
        for name, nest in inputs.items()
        if any(id(array) in requested or _is_trained(array) for array in trees.arrays(nest))
    )


def delivered(term: Term, inputs: Mapping[str, Any], evaluation: Evaluation, targets: Targets | None) -> Evaluation:
    """The evaluation as the caller would have made it: its value on the caller's graph, its gradient at the targets."""
    value = _beside(evaluation.value, inputs)
    ops = owner(value)
    assert ops is not None, "a value is an array"
    home = Evaluation(value, None, evaluation.metrics, evaluation.state, evaluation.duration)
    if not term.differentiable:
        return home
    pairs = _pairs(ops, inputs, evaluation)
    trained = [(leaf, part) for _, leaf, part in pairs if part is not None and _is_trained(leaf)]
    if targets is None:
        home.value, home.grad_error = _stitched(ops, value, trained), evaluation.grad_error
        return home
    known = {id(leaf) for leaf in targets.leaves}
    if ops.LIBRARY == "JAX" or any(id(leaf) not in known for leaf, _ in trained):
        # PyTorch's total is stitched as a whole, by the sum of gradients, where only targets are trained.
        home.value = _stitched(ops, value, trained)
    leaves = targets.placed(pairs)
    if any(leaf is not None for leaf in leaves):
        return targets.measured(home, leaves)
    home.grad_error = evaluation.grad_error or f"it does not read {', '.join(targets.nests)}"
    return home


def _pairs(ops: Backend, inputs: Mapping[str, Any], evaluation: Evaluation) -> list[tuple[str, Any, Any]]:
    """Each array that the term read, with its gradient; None where it has none."""
    pairs: list[tuple[str, Any, Any]] = []
    for name, gradient in (evaluation.gradient or {}).items():
        nest = inputs[name]
        for leaf, part in zip(trees.arrays(nest), trees.pair(nest, gradient), strict=True):
            if part is None or owner(leaf) is not ops:
                pairs.append((name, leaf, None))
                continue
            if owner(part) is not ops or ops.device(part) != ops.device(leaf):
                part = ops.as_array(part, leaf)
            pairs.append((name, leaf, ops.stop_gradient(part)))
    return pairs


def _stitched(ops: Backend, value: Any, trained: Sequence[tuple[Any, Any]]) -> Any:
    if not trained:
        return ops.stop_gradient(value)
    return ops.stitch(ops.stop_gradient(value), [leaf for leaf, _ in trained], [part for _, part in trained])


def _is_trained(array: Any) -> bool:
    """Whether the caller may differentiate with respect to this: it requires a gradient, or JAX follows it."""
    ops = owner(array)
    if ops is None or ops.LIBRARY == "NumPy":
        return False
    if ops.LIBRARY == "JAX":
        return ops.tracing(array) and ops.differentiable(array, requested=True)
    import torch

    return array.requires_grad and torch.is_grad_enabled()


def _beside(value: Any, inputs: Mapping[str, Any]) -> Any:
    """The value on the device of the inputs, where it was computed on another."""
    ops = owner(value)
    assert ops is not None, "a value is an array"
    for array in trees.arrays(list(inputs.values())):
        if owner(array) is ops:
            return value if ops.device(value) == ops.device(array) else ops.as_array(value, array)
    return value
