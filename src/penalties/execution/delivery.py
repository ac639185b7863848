"""From an evaluation made elsewhere to the caller's graph."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..backends import Backend, owner
from ..pipeline.evaluation import Evaluation
from ..pipeline.inputs import arrays_in, paired
from ..pipeline.targets import Targets
from ..pipeline.term import Term

__all__ = ["delivered", "wanted"]


def wanted(term: Term, inputs: Mapping[str, Any], targets: Targets | None) -> tuple[str, ...]:
    """The inputs of a term that its gradient is needed at: what the call asks for, and what the caller may train."""
    if not term.differentiable:
        return ()
    asked: set[int] = set() if targets is None else {id(leaf) for leaf in targets.leaves}
    return tuple(
        name
        for name, nest in inputs.items()
        if any(id(array) in asked or _trained(ops, array) for ops, array in arrays_in(nest))
    )


def delivered(
    term: Term, inputs: Mapping[str, Any], evaluation: Evaluation, targets: Targets | None
) -> tuple[Any, list[Any] | None, str | None]:
    """The value on the caller's graph, the gradient at each target, and, where there is none, why."""
    value = _home(evaluation.value, inputs)
    ops = owner(value)
    assert ops is not None, "a value is an array"
    if not term.differentiable:
        return value, None, None
    pairs = _pairs(ops, inputs, evaluation)
    if targets is None:
        live = [(leaf, part) for leaf, part in pairs if _trained(ops, leaf)]
        return _stitched(ops, value, live), None, evaluation.grad_error
    by_leaf: dict[int, Any] = {}
    for leaf, part in pairs:
        by_leaf[id(leaf)] = by_leaf[id(leaf)] + part if id(leaf) in by_leaf else part
    leaves = [by_leaf.get(id(leaf)) for leaf in targets.leaves]
    known = {id(leaf) for leaf in targets.leaves}
    live = [(leaf, part) for leaf, part in pairs if _trained(ops, leaf)]
    if ops.LIBRARY == "JAX" or any(id(leaf) not in known for leaf, _ in live):
        # PyTorch's total is stitched as a whole, by the sum of gradients, where nothing but targets is trained.
        value = _stitched(ops, value, live)
    if any(leaf is not None for leaf in leaves):
        return value, leaves, None
    reason = evaluation.grad_error or f"it does not read {', '.join(dict.fromkeys(targets.names))}"
    return value, None, reason


def _pairs(ops: Backend, inputs: Mapping[str, Any], evaluation: Evaluation) -> list[tuple[Any, Any]]:
    """Each array that the term read, and the gradient there, where it lies."""
    pairs: list[tuple[Any, Any]] = []
    for name, gradient in (evaluation.gradient or {}).items():
        nest = inputs[name]
        for (library, leaf), part in zip(arrays_in(nest), paired(nest, gradient), strict=True):
            if part is not None and library is ops:
                if owner(part) is not ops or ops.device(part) != ops.device(leaf) or part.dtype != leaf.dtype:
                    part = ops.as_array(part, leaf)
                pairs.append((leaf, ops.stop_gradient(part)))
    return pairs


def _stitched(ops: Backend, value: Any, live: Sequence[tuple[Any, Any]]) -> Any:
    if not live:
        return ops.stop_gradient(value)
    return ops.stitch(ops.stop_gradient(value), [leaf for leaf, _ in live], [part for _, part in live])


def _trained(ops: Backend, array: Any) -> bool:
    """Whether the caller may differentiate with respect to this: it requires a gradient, or JAX follows it."""
    if ops.LIBRARY == "JAX":
        return ops.tracing(array) and ops.differentiable(array, asked=True)
    if ops.LIBRARY != "PyTorch" or not array.requires_grad:
        return False
    import torch

    return torch.is_grad_enabled()


def _home(value: Any, inputs: Mapping[str, Any]) -> Any:
    """The value beside the inputs, where it was computed on another device."""
    ops = owner(value)
    assert ops is not None, "a value is an array"
    for nest in inputs.values():
        for library, array in arrays_in(nest):
            if library is ops:
                return value if ops.device(value) == ops.device(array) else ops.as_array(value, array)
    return value
