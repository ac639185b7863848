"""Computing the terms of a group once: values, gradients, metrics and new state. Nothing else evaluates terms."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import trees
from ..arrays import Logits, is_array
from ..backends import owner
from ..errors import GradientError, InputError, TermError, said
from ..functional.penalty import facts_of
from .binding import reader_of_logits
from .chunks import in_chunks
from .evaluation import Evaluation
from .groups.fused import Combined
from .groups.together import evaluate_together
from .inputs import CallInputs
from .plan import Group
from .returned import evaluation_of
from .targets import Targets
from .term import Term, check_step

__all__ = ["Evaluated", "called", "compute", "differentiate", "evaluate", "evaluate_term", "folded"]


class Evaluated(NamedTuple):
    """What came of a group."""

    evaluations: Sequence[Evaluation]
    """One for each of its terms."""
    combined: Combined | None = None
    """From a kernel: the gradient of all terms together; their evaluations have none."""


def evaluate(
    group: Group,
    inputs: CallInputs,
    targets: Targets | None,
    *,
    step: Any = None,
    coefficients: Sequence[Any] | None = None,
    accumulate: bool = False,
) -> Evaluated:
    """Every term of the group, computed once; with targets, gradients at their leaves are taken, too.

    With `accumulate` a kernel adds them to the leaves' own `.grad`.
    """
    start = 0.0 if inputs.traced else time.perf_counter()
    combined = None
    if group.fused is not None:
        factors = coefficients or [1.0] * len(group.jobs)
        evaluations, combined = group.fused.evaluate(inputs, targets, factors, accumulate=accumulate)
    elif len(group.jobs) == 1:
        (job,) = group.jobs
        evaluations = [_evaluate_one(job.term, inputs, targets, step, job.state)]
    else:
        evaluations = evaluate_together(_evaluate_one, [job.term for job in group.jobs], inputs, targets)
    if not inputs.traced:
        # A kernel's time is shared out evenly: it computes its terms in one sweep.
        share = (time.perf_counter() - start) / len(evaluations)
        for evaluation in evaluations:
            evaluation.duration = share
    return Evaluated(evaluations, combined)


def _evaluate_one(
    term: Term, inputs: CallInputs, targets: Targets | None, step: Any = None, state: Any = None
) -> Evaluation:
    if targets is None:
        return compute(term, inputs, step, state)
    return differentiate(term, inputs, targets, step, state)


def evaluate_term(
    term: Term, inputs: Mapping[str, Any], wrt: Sequence[str] = (), *, step: Any = None, state: Any = None
) -> Evaluation:
    """A term by itself, with its gradient with respect to the inputs that `wrt` names.

    >>> import torch
    >>> import penalties as pn
    >>> from penalties.pipeline.evaluate import evaluate_term
    >>> evaluate_term(pn.Term(pn.l2), {"x": torch.tensor([1.0, 2.0])}, wrt=("x",)).gradient
    {'x': tensor([2., 4.])}
    """
    given = CallInputs.of(inputs)
    targets = Targets.of(term.name, given, wrt) if wrt else None
    return evaluate(Group.of(term, state), given, targets, step=step).evaluations[0]


def compute(term: Term, inputs: CallInputs, step: Any = None, state: Any = None) -> Evaluation:
    """A term's value, on the graph of its inputs."""
    read, result = called(term, inputs, step, state)
    try:
        return evaluation_of(term, read, result)
    except TermError:
        raise
    except Exception as error:
        raise TermError(term.name, f"returned a result that could not be used: {said(error)}") from error


def called(term: Term, inputs: CallInputs, step: Any = None, state: Any = None) -> tuple[dict[str, Any], Any]:
    """What a term read, by the names of its inputs, and what its function returned, unchecked."""
    read = {name: inputs.find(term.name, name) for name in term.inputs.values()}
    facts = facts_of(reader_of_logits(term).fn)
    chunked = term.chunk is not None
    if facts is None or not facts.distribution:
        # Your own function, or a penalty on parameters, need not know that logits may not exist.
        read = {name: x if is_array(x) else trees.map_logits(inputs.materialized, x) for name, x in read.items()}
    elif chunked:
        # Blocks of rows are chunks already.
        chunked = not any(isinstance(x, Logits) for x in read.values())
    arguments = [read[name] for name in term.positional]
    keywords = _keywords(term, read, step, state)
    try:
        return read, in_chunks(term, arguments, keywords) if chunked else term.call(*arguments, **keywords)
    except TermError as error:
        if error.term == term.name:
            raise
        # Of a pipeline that the term calls.
        raise TermError(term.name, f"raised {said(error)}", error.phase) from error
    except Exception as error:
        raise TermError(term.name, f"raised {said(error)}") from error


def _keywords(term: Term, read: Mapping[str, Any], step: Any, state: Any) -> dict[str, Any]:
    keywords = dict(term.keywords)
    for parameter, name in term.named:
        keywords[parameter] = read[name]
    if term.takes_state:
        keywords["state"] = state
    if term.takes_step:
        check_step(term, step)
        keywords["step"] = step
    if term.seed is not None and step is not None:
        keywords["seed"] = folded(term.seed, step)
    return keywords


def folded(seed: int, step: Any) -> Any:
    """Another draw at each step, the same one whenever that step is repeated."""
    ops = owner(step)
    if ops is not None and ops.LIBRARY == "JAX":
        import jax

        return jax.random.fold_in(jax.random.key(seed), step)
    return seed * 2**32 + int(step)


def differentiate(term: Term, inputs: CallInputs, targets: Targets, step: Any = None, state: Any = None) -> Evaluation:
    """A term's value and its unscaled gradient at each target that it reads, with norms; or why there is none."""
    if not term.differentiable:
        return compute(term, inputs, step, state)
    indices = targets.read_by(term)
    if not indices:
        evaluation = compute(term, inputs, step, state)
        evaluation.gradient, evaluation.grad_error = None, targets.unread
        return evaluation
    ops = targets.ops
    if ops.LIBRARY == "NumPy":
        evaluation = compute(term, inputs, step, state)
        if evaluation.gradient is None:
            raise GradientError(
                f"{term.name}: NumPy has no automatic differentiation; pass torch or JAX arrays, "
                "or return Evaluation(value, gradient={input: array}) from the term"
            )
        return targets.measured(evaluation, targets.placed(_returned(term, inputs, targets, evaluation.gradient)))
    kept: list[Evaluation] = []

    def value_of(leaves: Sequence[Any]) -> tuple[Any, list[Any]]:
        # Each term has inputs of its own: a hook, or a change, that one of them makes must not reach the others.
        evaluation = compute(term, targets.inputs_at(indices, leaves), step, state)
        kept.append(evaluation)
        # JAX and torch.func must return further arrays together with the value, or they would be tracers.
        further = _further(evaluation)
        return evaluation.value, [] if further is None else list(trees.arrays(further))

    try:
        leaves = [targets.leaves[index] for index in indices]
        value, further, gradients = ops.value_and_gradients(value_of, leaves)
    except (TermError, InputError):
        raise
    except Exception as error:
        raise TermError(term.name, f"its gradient raised {said(error)}", "gradient") from error
    evaluation = kept[-1]
    evaluation.value, evaluation.gradient = value, None
    if further:
        refill = iter(further)
        evaluation.metrics, evaluation.state = trees.map_arrays(lambda _: next(refill), _further(evaluation))
    if all(gradient is None for gradient in gradients):
        names = ", ".join(dict.fromkeys(targets.names[index] for index in indices))
        reason = f"its value does not depend on {names} by operations that {ops.LIBRARY} can differentiate"
        evaluation.grad_error = reason
        return evaluation
    spread: list[Any] = [None] * len(targets.leaves)
    for index, gradient in zip(indices, gradients, strict=True):
        spread[index] = gradient
    return targets.measured(evaluation, spread)


def _returned(term: Term, inputs: CallInputs, targets: Targets, gradient: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """The gradients that the term returned, each with the index of its leaf."""
    found: list[tuple[int, Any]] = []
    for name, parts in gradient.items():
        nest = inputs.find(term.name, name)
        found += zip(targets.indices_of(term.name, name, nest), trees.pair(nest, parts), strict=True)
    return found


def _further(evaluation: Evaluation) -> Any:
    """The other fields that may hold arrays."""
    nothing = not evaluation.metrics and evaluation.state is None
    return None if nothing else (evaluation.metrics, evaluation.state)
