"""Computing one term once: value, gradient, metrics and new state."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..backends import owner
from ..errors import GradientError, InputError, TermError, said
from .chunks import in_chunks
from .evaluation import Evaluation, Result, completed
from .inputs import arrays_in, lookup, reads, surroundings
from .kinds import is_mapping, is_row
from .reading import NOTHING
from .targets import Targets
from .term import Term

__all__ = ["compute", "differentiate", "evaluate"]


def evaluate(
    term: Term, inputs: Mapping[str, Any], wrt: Sequence[str] = (), *, step: Any = None, state: Any = None
) -> Evaluation:
    """Compute a term once, with its gradient with respect to the inputs that `wrt` names.

    >>> import torch
    >>> import penalties as pn
    >>> from penalties.pipeline.evaluate import evaluate
    >>> evaluate(pn.Term(pn.l2), {"x": torch.tensor([1.0, 2.0])}, wrt=("x",)).gradient
    {'x': tensor([2., 4.])}
    """
    quiet, _, _ = surroundings(inputs)
    start = 0.0 if quiet else time.perf_counter()
    if not wrt:
        (value, gradient, metrics, new), grad_error = compute(term, inputs, step, state), None
    else:
        targets = Targets.of(term.name, inputs, wrt)
        (value, _, metrics, new), leaves, grad_error = differentiate(term, inputs, targets, step=step, state=state)
        gradient = None if leaves is None else targets.structured(leaves)
    return Evaluation(value, gradient, metrics, new, None if quiet else time.perf_counter() - start, grad_error)


def compute(term: Term, inputs: Mapping[str, Any], step: Any = None, state: Any = None) -> Result:
    """The value of a term, on the graph of its inputs."""
    name = term.name
    arguments = [inputs[wanted] if wanted in inputs else lookup(name, inputs, wanted) for wanted in term.positional]
    keywords = term.keywords
    if not term.plain or (term.seed is not None and step is not None):
        keywords = _keywords(term, inputs, step, state)
    try:
        result = term.call(*arguments, **keywords) if term.chunk is None else in_chunks(term, arguments, keywords)
    except (TermError, InputError):
        raise
    except Exception as error:
        raise TermError(name, f"raised {said(error)}") from error
    if term.returns_value and arguments:
        # The common case, without another frame: the budget is a few microseconds a term.
        like = arguments[0]
        library = owner(like)
        if library is not None and type(result) is type(like) and library.settled(result, like):
            return result, None, NOTHING, None
    return completed(term, arguments, keywords, result)


def _keywords(term: Term, inputs: Mapping[str, Any], step: Any, state: Any) -> dict[str, Any]:
    keywords = dict(term.keywords)
    for parameter, wanted in term.named:
        keywords[parameter] = lookup(term.name, inputs, wanted)
    if term.takes_state:
        keywords["state"] = state
    if term.takes_step:
        if step is None and term.needs_step:
            raise InputError(f"{term.name}: asks for the step; pass step= to the call")
        keywords["step"] = step
    if term.seed is not None and step is not None:
        keywords["seed"] = _folded(term.seed, step)
    return keywords


def _folded(seed: int, step: Any) -> Any:
    """Another draw at each step, the same one whenever that step is repeated."""
    ops = owner(step)
    if ops is not None and ops.LIBRARY == "JAX":
        import jax

        return jax.random.fold_in(jax.random.key(seed), step)
    return seed * 2**32 + int(step)


def differentiate(
    term: Term,
    inputs: Mapping[str, Any],
    targets: Targets,
    *,
    step: Any = None,
    state: Any = None,
    scale: float = 1.0,
) -> tuple[Result, list[Any] | None, str | None]:
    """The result, `scale` times its gradient at each leaf of the targets, and, where there is no gradient, why."""
    if not term.differentiable:
        return compute(term, inputs, step, state), None, None
    for name in targets.nests:
        for wanted in term.inputs.values():
            if wanted != name and reads(name, wanted):
                raise InputError(
                    f'{term.name}: reads "{wanted}" as a whole; take the gradient at that, not at "{name}"'
                )
    places = [
        place for place, name in enumerate(targets.names) if any(reads(wanted, name) for wanted in term.inputs.values())
    ]
    if not places:
        roots = ", ".join(dict.fromkeys(targets.names))
        return compute(term, inputs, step, state), None, f"it does not read {roots}"
    ops = targets.ops
    if ops.LIBRARY == "NumPy":
        return _own_gradient(term, inputs, targets, step, state, scale)
    chosen = [targets.leaves[place] for place in places]
    kept: list[Result] = []

    def value_of(leaves: Sequence[Any]) -> tuple[Any, list[Any]]:
        result = compute(term, targets.replaced(inputs, places, leaves), step, state)
        value, _, metrics, new = result
        kept.append(result)
        if new is None and not metrics:
            return value, []
        return value, [array for _, array in arrays_in([metrics, new])]

    try:
        value, arrays, gradients = ops.value_and_gradients(value_of, chosen, scale)
    except (TermError, InputError):
        raise
    except Exception as error:
        raise TermError(term.name, f"its gradient raised {said(error)}", "gradient") from error
    _, _, metrics, new = kept[-1]
    if arrays:
        metrics, new = _refilled([metrics, new], iter(arrays))
    result = value, None, metrics, new
    if all(gradient is None for gradient in gradients):
        read = ", ".join(dict.fromkeys(targets.names[place] for place in places))
        reason = f"its value does not depend on {read} by operations that {ops.LIBRARY} can differentiate"
        return result, None, reason
    spread: list[Any] = [None] * len(targets.leaves)
    for place, gradient in zip(places, gradients, strict=True):
        spread[place] = gradient
    return result, spread, None


def _own_gradient(
    term: Term, inputs: Mapping[str, Any], targets: Targets, step: Any, state: Any, scale: float
) -> tuple[Result, list[Any] | None, str | None]:
    result = compute(term, inputs, step, state)
    _, gradient, _, _ = result
    if gradient is None:
        raise GradientError(
            f"{term.name}: NumPy has no automatic differentiation; pass torch or JAX arrays, "
            "or return Evaluation(value, gradient={input: array}) from the term"
        )
    return result, [None if leaf is None else scale * leaf for leaf in targets.gathered(gradient)], None


def _refilled(nest: Any, arrays: Iterator[Any]) -> Any:
    """The nest with its arrays replaced by new ones, in order."""
    if owner(nest) is not None:
        return next(arrays)
    if is_mapping(nest):
        return {key: _refilled(part, arrays) for key, part in nest.items()}
    if is_row(nest):
        kind: Any = type(nest)
        return getattr(kind, "_make", kind)([_refilled(part, arrays) for part in nest])
    return nest
