"""What a term's function returned, checked and brought into the form of an evaluation."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from .. import trees
from ..backends import Backend, owner
from ..errors import TermError
from .awaitables import awaited, is_awaitable
from .evaluation import Evaluation
from .kinds import described, is_mapping, is_number, is_row
from .term import Term

__all__ = ["evaluation_of"]


def evaluation_of(term: Term, read: Mapping[str, Any], result: Any) -> Evaluation:
    """The evaluation that a result is; `read` is what the term read, by the names of its inputs."""
    if owner(result) is None and is_awaitable(result):
        result = awaited(term.name, result)
    brought = result if isinstance(result, Evaluation) else None
    metrics: Mapping[str, Any] = {}
    value = result
    if brought is not None:
        value, metrics = brought.value, brought.metrics
        if not is_mapping(metrics):
            raise TermError(term.name, f"returned {described(metrics)} as metrics; expected a mapping")
    elif is_row(result) and len(result) == 2:
        value, metrics = result
        if not is_mapping(metrics):
            raise TermError(term.name, f"returned a pair with {described(metrics)}; expected (value, dict of metrics)")
    elif term.takes_state:
        raise TermError(term.name, f"takes state and returned {described(result)}; expected Evaluation(…, state=new)")
    gradient = None if brought is None else brought.gradient
    if gradient is not None and not is_mapping(cast("Any", gradient)):
        raise TermError(term.name, f"returned {described(gradient)} as gradient; expected a mapping: {{input: array}}")
    value, ops = _as_scalar(term, list(read.values()), value, has_gradient=gradient is not None)
    if not term.differentiable:
        value, gradient = ops.stop_gradient(value), None
    elif gradient is not None:
        value = _stitched(term, ops, read, value, gradient)
        gradient = _by_input(term, read, gradient)
    return Evaluation(
        value,
        gradient,
        {key: _metric(term, key, metric) for key, metric in metrics.items()} if metrics else {},
        None if brought is None else brought.state,
    )


def _as_scalar(term: Term, arguments: Sequence[Any], value: Any, *, has_gradient: bool) -> tuple[Any, Backend]:
    """The value as a 0-d array of at least 32 bits, in the library and on the device of the term's inputs."""
    ops = owner(value)
    for argument in arguments:
        # The common case first: an array as input, and a value of the same library on the same device.
        beside = ops is not None and owner(argument) is ops and ops.device(argument) == ops.device(value)
        if beside and ops is not None and not len(value.shape):
            return ops.upcast(term.name, ops.whole(value)), ops
    found = [(cast("Backend", owner(array)), array) for array in trees.arrays(list(arguments))]
    libraries = [library for library, _ in found]
    foreign = bool(libraries) and ops not in libraries
    if ops is None or (foreign and is_number(value)):
        if not is_number(value):
            raise TermError(term.name, f"returned {described(value)}; expected a scalar (0-d) array")
        if term.differentiable and not has_gradient:
            raise TermError(
                term.name,
                f"returned a plain number ({value:g}), which has no gradient; expected a scalar (0-d) array, "
                "or Evaluation(value, gradient={input: array}), or set differentiable=False to count it as a constant",
            )
        if not found:
            constant = np.asarray(value, np.float64)
            return constant, cast("Backend", owner(constant))
        ops, like = found[0]
        return ops.upcast(term.name, ops.as_array(value, like)), ops
    if len(value.shape):
        raise TermError(
            term.name,
            f"returned an array of shape {tuple(value.shape)}; expected a scalar (0-d) array: "
            "reduce it, for example by its sum",
        )
    if foreign:
        if not term.differentiable or has_gradient:
            library, like = found[0]
            return library.upcast(term.name, library.as_array(value.tolist(), like)), library
        raise TermError(
            term.name,
            f"returned a {ops.LIBRARY} array and its inputs are {libraries[0].LIBRARY} arrays; "
            "expected one library, so that it has a gradient, or differentiable=False to count it as a constant",
        )
    devices = [ops.device(array) for library, array in found if library is ops]
    if devices and ops.device(value) not in devices:
        raise TermError(
            term.name,
            f"returned a value on {ops.device(value)} and its inputs are on {devices[0]}; "
            "expected it on the device of its inputs",
        )
    return ops.upcast(term.name, ops.whole(value)), ops


def _metric(term: Term, key: object, metric: Any) -> Any:
    if not isinstance(key, str) or not key:
        raise TermError(term.name, f"returned a metric named {key!r}; expected a string that is not empty")
    ops = owner(metric)
    if ops is not None:
        if len(metric.shape):
            raise TermError(term.name, f"returned the metric {key} of shape {tuple(metric.shape)}; expected a scalar")
        return ops.stop_gradient(ops.whole(metric))
    if not isinstance(metric, int | float | bool):
        raise TermError(
            term.name, f"returned the metric {key} as {described(metric)}; expected a number or a 0-d array"
        )
    if isinstance(metric, int) and abs(metric) > sys.float_info.max:
        raise TermError(term.name, f"returned the metric {key} as an int beyond the range of floats")
    return metric


def _by_input(term: Term, read: Mapping[str, Any], gradient: Mapping[str, Any]) -> dict[str, Any]:
    """The gradient under the names of inputs; those of two parameters that read one input are added."""
    found: dict[str, Any] = {}
    for key, part in gradient.items():
        name = term.inputs.get(key, key)
        if name in found:
            pairs = zip(trees.pair(read[name], found[name]), trees.pair(read[name], part), strict=True)
            part = trees.flatten(read[name]).rebuild(b if a is None else a if b is None else a + b for a, b in pairs)
        found[name] = part
    return found


def _stitched(term: Term, ops: Backend, read: Mapping[str, Any], value: Any, gradient: Mapping[str, Any]) -> Any:
    """The value as a function of what the term read, with the gradient that it returned."""
    inputs: list[Any] = []
    gradients: list[Any] = []
    for key, returned in gradient.items():
        name = term.inputs.get(key, key)
        if name not in read:
            raise TermError(term.name, f'returned a gradient for "{key}"; expected its inputs: {", ".join(read)}')
        try:
            parts = trees.pair(read[name], returned)
        except ValueError as error:
            raise TermError(term.name, f'returned a gradient for "{key}" of another structure: {error}') from error
        for leaf, part in zip(trees.arrays(read[name]), parts, strict=True):
            if part is None:
                continue
            if tuple(np.shape(part)) != tuple(leaf.shape):
                raise TermError(
                    term.name,
                    f'returned a gradient of shape {tuple(np.shape(part))} for "{key}"; '
                    f"expected that of the input, {tuple(leaf.shape)}",
                )
            if "complex" in str(getattr(part, "dtype", "")):
                raise TermError(term.name, f'returned complex numbers as the gradient for "{key}"; expected real ones')
            inputs.append(leaf)
            gradients.append(ops.stop_gradient(ops.as_array(part, leaf)))
    return ops.stitch(ops.stop_gradient(value), inputs, gradients)
