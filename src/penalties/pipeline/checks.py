"""Checks of what a call was given, for mistakes that train something else than was meant, silently."""

import contextlib
import math
import os
import weakref
from collections.abc import Collection, Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from .. import trees
from ..backends import owner
from ..errors import InputError
from ..functional.penalty import Facts, facts_of
from .binding import innermost
from .kinds import is_mapping

if TYPE_CHECKING:
    from .inputs import CallInputs
    from .pipeline import Pipeline
    from .plan import Job
    from .term import Term

__all__ = ["Record", "debug", "findings", "is_on"]

_on: Final[ContextVar[bool | None]] = ContextVar("debug", default=None)

_TOLERANCE: Final = 1e-2
"""How far probabilities may sum from 1: half precision is off by a few thousandths."""

_stateful: Final[weakref.WeakSet[object]] = weakref.WeakSet()
"""The origins of pipelines whose outputs have had state: equal pipelines may belong to different runs."""


@contextlib.contextmanager
def debug(on: bool = True) -> Generator[None]:
    """Check what every call inside is given, before its terms are evaluated: `CheckError` lists what is suspicious.

    It looks for NaN in inputs, log-probabilities that do not sum to one (logits or probabilities instead),
    inputs that no term reads, and state that was returned and not passed in again. It reads values, which waits for
    the device; inside a compiler it does nothing. `PENALTIES_DEBUG=1` in the environment turns it on everywhere.

    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.entropy)])
    >>> with pn.debug():
    ...     try:
    ...         pipeline(p=np.array([[0.7, 0.2, 0.1]]))
    ...     except pn.CheckError as error:
    ...         print(error)
    entropy: p holds probabilities, which sum to 1; expected log-probabilities: pass log(p)
    """
    token = _on.set(on)
    try:
        yield
    finally:
        _on.reset(token)


def is_on() -> bool:
    """Whether calls are checked here."""
    here = _on.get()
    return os.environ.get("PENALTIES_DEBUG", "0") not in ("", "0") if here is None else here


class Record(NamedTuple):
    """What can be checked about a call after it: names, and weak references to arrays, which it does not keep alive."""

    pipeline: "Pipeline"
    names: tuple[str, ...]
    """Of the inputs."""
    alone: bool
    """Whether the input was given by position."""
    lost: Sequence[str]
    """Stateful terms of a pipeline that has returned state, called without."""
    arrays: Mapping[str, Any]
    """The arrays among the inputs, by name."""
    due: "tuple[Term, ...]"
    """The terms that ran."""
    call: int | None
    """The number of the call in its events; None without handlers."""
    step: Any
    """What the call was given as its step."""

    @classmethod
    def of(
        cls,
        pipeline: "Pipeline",
        jobs: "Sequence[Job]",
        inputs: "CallInputs",
        state: Mapping[str, Any] | None,
        *,
        call: int | None,
        step: Any,
    ) -> "Record":
        """Of a call that is about to be evaluated."""
        stateful = [job.term.name for job in jobs if job.term.takes_state]
        lost = stateful if stateful and state is None and pipeline.origin in _stateful else ()
        if stateful:
            _stateful.add(pipeline.origin)
        arrays = {name: weakref.ref(given) for name, given in inputs.named.items() if _is_referable(given)}
        for name in pipeline.paths:
            if _is_referable(found := _inside(inputs, name)):
                arrays[name] = weakref.ref(found)
        due = tuple([job.term for job in jobs])
        return cls(pipeline, tuple(inputs.named), inputs.alone, lost, arrays, due, call, step)


def _inside(inputs: "CallInputs", path: str) -> Any:
    """What a path leads to inside a mapping, or None; of an object a property might compute it anew."""
    if not is_mapping(inputs.named.get(path.partition(".")[0])):
        return None
    try:
        return inputs.find("debug", path)
    except InputError:
        # The term that reads it will say so.
        return None


def _is_referable(given: Any) -> bool:
    return owner(given) is not None and not isinstance(given, np.generic)


def findings(record: Record, inputs: "CallInputs | None" = None) -> list[str]:
    """What is suspicious about a call, a line each.

    Without `inputs`, inputs that are not arrays themselves, and arrays that are gone, are passed over.
    """
    unread = [] if record.alone else [name for name in record.names if name not in record.pipeline.reads]
    lines = [f'no term reads the input "{name}"; remove it, or name it in inputs= of a term' for name in unread]
    lines += [
        f"{name}: takes state, and the state that was returned before was not passed in; call with state=out.state, "
        "or state={} to start over"
        for name in record.lost
    ]
    if inputs is None:
        given = [(name, array()) for name, array in record.arrays.items()]
    else:
        given = [(name, array) for name, nest in inputs.named.items() for array in trees.arrays(nest)]
    broken = dict.fromkeys(name for name, array in given if array is not None and _has_nan(array))
    if inputs is not None:
        broken |= {name: None for name, plain in inputs.named.items() if isinstance(plain, float) and math.isnan(plain)}
    lines += [f'the input "{name}" contains NaN' for name in broken]
    for term in record.due:
        inner = innermost(term)
        facts = facts_of(inner.fn)
        if facts is not None and facts.takes_logprobs(inner.options):
            lines += _not_normalised(record, inputs, term, facts, facts.options(inner.options), broken)
    return lines


def _not_normalised(
    record: Record,
    inputs: "CallInputs | None",
    term: "Term",
    facts: Facts,
    options: Mapping[str, Any],
    broken: Collection[str],
) -> list[str]:
    """The inputs of a term that are not the log-probabilities that it expects."""

    def find(name: str) -> Any:
        if inputs is not None:
            return inputs.find(term.name, name)
        reference = record.arrays.get(next(iter(record.names)) if record.alone else name)
        return None if reference is None else reference()

    mask = find(term.inputs["mask"]) if "mask" in term.inputs else options.get("mask")
    if mask is None and "mask" in term.inputs:
        return []
    lines: list[str] = []
    for parameter, name in term.inputs.items():
        array = None if parameter in ("mask", *facts.labels) or name in broken else find(name)
        problem = None if owner(array) is None else _normalisation_problem(array, mask)
        if problem is not None:
            lines.append(f"{term.name}: {name} {problem}")
    return lines


def _has_nan(array: Any) -> bool:
    ops = owner(array)
    assert ops is not None, "an array"
    return ops.differentiable(array, requested=True) and bool(ops.read([(array != array).any()])[0])


def _normalisation_problem(array: Any, mask: Any) -> str | None:
    """What is wrong with log-probabilities over the last axis, where the mask counts them."""
    ops = owner(array)
    assert ops is not None, "an array"
    if not len(array.shape) or 0 in array.shape:
        return None
    x = ops.stop_gradient(ops.upcast("debug", array))
    off, plain = abs(ops.sum(ops.exp(x), -1) - 1), abs(ops.sum(x, -1) - 1)
    largest, smallest = x, x
    if mask is not None:
        # Where a row does not count, nothing is wrong, whatever stands there.
        rows = mask != 0
        off, plain = ops.where(rows, off, 0.0), ops.where(rows, plain, 0.0)
        largest, smallest = ops.where(rows[..., None], x, -1.0), ops.where(rows[..., None], x, 1.0)
    numbers = ops.read([off.max(), plain.max(), largest.max(), smallest.min()])
    worst, worst_plain, highest, lowest = numbers
    if worst <= _TOLERANCE:
        return None
    if worst_plain <= _TOLERANCE and lowest >= 0:
        return "holds probabilities, which sum to 1; expected log-probabilities: pass log(p)"
    if highest > 0:
        return 'holds logits; expected log-probabilities: pass log_softmax of them, or set the option "logits" to True'
    return f"holds log-probabilities whose probabilities do not sum to 1 (off by {worst:.3g}); renormalize them"
