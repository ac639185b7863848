"""Several terms as one graph of torch.compile."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ... import trees
from ...backends import owner
from ..evaluation import Evaluation
from ..inputs import INPUT, CallInputs
from ..targets import Targets
from ..term import Term
from .compiled import KEPT, compile_failure, graph

__all__ = ["Together", "evaluate_together", "together"]


class Together(NamedTuple):
    """Terms that become one graph."""

    indices: list[int]
    reason: str
    fused: None = None


def together(terms: Sequence[tuple[int, Term, Any]], inputs: CallInputs, targets: Targets | None) -> Iterator[Together]:
    """The groups among these terms, each with its index and whether it is due."""
    offered = [(index, term) for index, term, due in terms if due is True and _may_join(term)]
    if len(offered) < 2 or inputs.transformed or (targets is not None and not _is_complete(targets)):
        return
    groups: dict[str, list[int]] = {}
    for index, term in offered:
        if _reads_tensors(term, inputs):
            groups.setdefault(term.compiler, []).append(index)
    for indices in groups.values():
        if len(indices) > 1:
            yield Together(indices, "one graph of torch.compile for all of them")


def _may_join(term: Term) -> bool:
    if not term.compile or not term.differentiable or term.on_error != "raise":
        return False
    return not (term.takes_state or term.takes_step or term.seed is not None or term.chunk is not None)


def _reads_tensors(term: Term, inputs: CallInputs) -> bool:
    for name in term.inputs.values():
        arrays = [owner(array) for array in trees.arrays(inputs.find(term.name, name))]
        if not arrays or any(ops is None or ops.LIBRARY != "PyTorch" for ops in arrays):
            return False
    return True


def _is_complete(targets: Targets) -> bool:
    """Whether gradients are taken at all leaves of their inputs."""
    return len(targets.leaves) == sum(len(nest.leaves) for nest in targets.nests.values())


def evaluate_together(
    one: Callable[[Term, CallInputs, Targets | None], Evaluation],
    terms: Sequence[Term],
    inputs: CallInputs,
    targets: Targets | None,
) -> list[Evaluation]:
    """The evaluations of a group, in one graph; `one` evaluates a term by itself, and is traced."""
    given = inputs
    if targets is not None:
        for term in terms:
            targets.read_by(term)  # raises for one that reads more of an input than gradients are taken at
        # The gradients are in the graph: it needs no backward of its own.
        given = targets.inputs_at(range(len(targets.leaves)), [leaf.detach() for leaf in targets.leaves])
    roots = [INPUT] if inputs.alone else [name for name in given.named if _is_read(name, terms, given)]
    named = {name: given.named[name] for name in roots}
    names = () if targets is None else tuple(targets.nests)
    # The graph does not include weights.
    run = _group(one, tuple(term.with_weight(1.0) for term in terms), inputs.alone, names)
    try:
        found = run(named)
    except Exception as error:
        for term in terms if len(terms) > 1 else ():
            # The one that fails says so.
            evaluate_together(one, (term,), inputs, targets)
        raise compile_failure(terms[0].name, error) from error
    evaluations = [Evaluation(value, gradient, metrics, None, 0.0, *rest) for value, gradient, metrics, *rest in found]
    return evaluations if targets is None else [_attached(each, targets) for each in evaluations]


def _attached(evaluation: Evaluation, targets: Targets) -> Evaluation:
    """With a value that depends on tensors which a function took from elsewhere, as a function of the targets, too."""
    value, ops = evaluation.value, targets.ops
    if ops.detached(value) or evaluation.gradient is None:
        return evaluation
    pairs = zip(targets.leaves, targets.leaves_of(evaluation.gradient), strict=True)
    present = [(leaf, gradient) for leaf, gradient in pairs if gradient is not None]
    plain = ops.stop_gradient(value)
    there = ops.stitch(plain, [leaf for leaf, _ in present], [gradient for _, gradient in present])
    evaluation.value = value + (there - plain)
    return evaluation


def _is_read(name: str, terms: Sequence[Term], inputs: CallInputs) -> bool:
    return any(inputs.lies_in(read, name) for term in terms for read in term.inputs.values())


@functools.lru_cache(maxsize=KEPT)
def _group(
    one: Callable[[Term, CallInputs, Targets | None], Evaluation],
    terms: tuple[Term, ...],
    alone: bool,
    wrt: tuple[str, ...],
) -> Callable[..., Any]:
    def values(named: dict[str, Any]) -> list[tuple[Any, ...]]:
        inputs = CallInputs.of(named, alone=alone)
        targets = Targets.of("value_and_grad", inputs, wrt) if wrt else None
        found = [one(term, inputs, targets) for term in terms]
        return [
            (each.value, each.gradient, each.metrics, each.grad_error, each.grad_norm, each.grad_norms)
            for each in found
        ]

    return graph(values, terms[0].compiler)
