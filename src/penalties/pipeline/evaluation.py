"""What a term returned, checked and brought into one form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from ..backends import Backend, owner
from ..errors import TermError
from .awaitables import awaited, is_awaitable
from .inputs import arrays_in, paired
from .kinds import described, is_mapping, is_number, is_row
from .reading import NOTHING
from .term import Term

__all__ = ["Evaluation", "Result", "completed"]

Result: TypeAlias = tuple[Any, Mapping[str, Any] | None, Mapping[str, Any], Any]
"""Value, gradient that the term brought, metrics, new state: an evaluation without the price of an object."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One term computed once. Plain data: it can come from anywhere.

    A term returns one to bring its own gradient, or its new state.

    >>> import numpy as np
    >>> import penalties as pn
    >>> def count(x):
    ...     return pn.Evaluation(np.float64((x != 0).sum()), gradient={"x": np.sign(x)}, metrics={"size": x.size})
    >>> out = pn.Pipeline([pn.Term(count, weight=0.1)]).value_and_grad(np.array([2.0, 0.0, -1.0]))
    >>> out.gradient
    array([ 0.1,  0. , -0.1])
    """

    value: Any
    gradient: Mapping[str, Any] | None = None
    """`{input: array}`, each with the structure of that input."""
    metrics: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    state: Any = None
    duration: float | None = None
    """Seconds; None where nobody measured."""
    grad_error: str | None = None
    """Why there is no gradient, where one was asked for."""


def completed(term: Term, arguments: list[Any], keywords: dict[str, Any], result: Any) -> Result:
    """What a term returned, checked and brought into one form."""
    if owner(result) is None and is_awaitable(result):
        result = awaited(term.name, result)
    like = arguments[0] if arguments else None
    library = owner(like)
    gradient = state = None
    metrics: Mapping[str, Any] = NOTHING
    value = result
    if is_row(result) and len(result) == 2:
        value, metrics = result
        if not is_mapping(metrics):
            raise TermError(term.name, f"returned a pair with {described(metrics)}; expected (value, dict of metrics)")
    elif isinstance(result, Evaluation):
        value, gradient, metrics, state = result.value, result.gradient, result.metrics, result.state
    elif term.takes_state:
        raise TermError(term.name, f"takes state and returned {described(result)}; expected Evaluation(…, state=new)")

    if gradient is not None and not is_mapping(cast("Any", gradient)):
        raise TermError(
            term.name, f"brought a gradient that is {described(gradient)}; expected a mapping: {{input: array}}"
        )
    ops = owner(value)
    if ops is None or ops is not library or not ops.settled(value, like):
        value, ops = _checked(term, [*arguments, *keywords.values()], value, brought=gradient is not None)
    value = ops.upcast(term.name, value)
    if not term.differentiable:
        value = ops.stop_gradient(value)
    elif gradient is not None:
        read = dict(zip(term.positional, arguments, strict=True))
        read |= {wanted: keywords[parameter] for parameter, wanted in term.named}
        value = _stitched(term, ops, read, value, gradient)
        gradient = {term.inputs.get(key, key): part for key, part in gradient.items()}
    if metrics:
        metrics = {key: _metric(term, key, metric) for key, metric in metrics.items()}
    return value, gradient, metrics, state


def _checked(term: Term, arguments: Sequence[Any], value: Any, *, brought: bool) -> tuple[Any, Backend]:
    """The value as a 0-d array of the library of the term's inputs; refuses what cannot be one."""
    found = list(arrays_in(arguments))
    ops = owner(value)
    libraries = [library for library, _ in found]
    foreign = bool(libraries) and ops not in libraries
    if ops is None or (foreign and is_number(value)):
        if not is_number(value):
            raise TermError(term.name, f"returned {described(value)}; expected a scalar (0-d) array")
        if term.differentiable and not brought:
            raise TermError(
                term.name,
                f"returned a plain number ({value:g}), which has no gradient; expected a scalar (0-d) array, "
                "or Evaluation(value, gradient={input: array}), or set differentiable=False to count it as a constant",
            )
        if not found:
            constant = np.asarray(value, np.float64)
            return constant, cast("Backend", owner(constant))
        ops, like = found[0]
        return ops.as_array(value, like), ops
    if len(value.shape):
        raise TermError(
            term.name,
            f"returned an array of shape {tuple(value.shape)}; expected a scalar (0-d) array: "
            "reduce it, for example by its sum",
        )
    if foreign:
        if not term.differentiable or brought:
            library, like = found[0]
            return library.as_array(value.tolist(), like), library
        raise TermError(
            term.name,
            f"returned a {ops.LIBRARY} array and its inputs are {libraries[0].LIBRARY} arrays; "
            "expected one library, so that it has a gradient, or differentiable=False to count it as a constant",
        )
    places = [ops.device(array) for library, array in found if library is ops]
    if places and ops.device(value) not in places:
        raise TermError(
            term.name,
            f"returned a value on {ops.device(value)} and its inputs are on {places[0]}; expected it beside them",
        )
    return value, ops


def _metric(term: Term, key: object, metric: Any) -> Any:
    if not isinstance(key, str) or not key:
        raise TermError(term.name, f"returned a metric named {key!r}; expected a string that is not empty")
    ops = owner(metric)
    if ops is not None:
        if len(metric.shape):
            raise TermError(term.name, f"returned the metric {key} of shape {tuple(metric.shape)}; expected a scalar")
        return ops.stop_gradient(metric)
    if not isinstance(metric, int | float | bool):
        raise TermError(
            term.name, f"returned the metric {key} as {described(metric)}; expected a number or a 0-d array"
        )
    return metric


def _stitched(term: Term, ops: Backend, read: Mapping[str, Any], value: Any, gradient: Mapping[str, Any]) -> Any:
    """The value as a function of the inputs that the term read, with the gradient that it brought."""
    inputs: list[Any] = []
    gradients: list[Any] = []
    for key, brought in gradient.items():
        wanted = term.inputs.get(key, key)
        if wanted not in read:
            raise TermError(term.name, f'brought a gradient for "{key}"; expected its inputs: {", ".join(read)}')
        leaves = [leaf for _, leaf in arrays_in(read[wanted])]
        try:
            parts = paired(read[wanted], brought)
        except ValueError as error:
            raise TermError(term.name, f'brought a gradient for "{key}" of another structure: {error}') from error
        for leaf, part in zip(leaves, parts, strict=True):
            if part is None:
                continue
            if tuple(np.shape(part)) != tuple(leaf.shape):
                raise TermError(
                    term.name,
                    f'brought a gradient of shape {tuple(np.shape(part))} for "{key}"; '
                    f"expected that of the input, {tuple(leaf.shape)}",
                )
            inputs.append(leaf)
            gradients.append(ops.stop_gradient(ops.as_array(part, leaf)))
    return ops.stitch(ops.stop_gradient(value), inputs, gradients)
