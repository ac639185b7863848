"""A term at edge cases of its inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

import numpy as np

from .. import trees
from ..backends import Backend, owner
from ..errors import GradientError, OptionError, PenaltiesError
from ..pipeline import Evaluation
from ..pipeline.kinds import is_mapping, is_row
from .sample import Numbers, Sample, number, numbers
from .verdict import Check

__all__ = ["EDGES", "Edges", "check_edge", "edge_samples"]

Edges: TypeAlias = Sequence[str] | Mapping[str, Any] | None
"""Names of built-in edges, or `{name: inputs}`."""

_TINY: Final = 1e-30
_LARGE: Final = 1e4


def _changed(change: Callable[[Numbers], Any]) -> Callable[[Sample], Sample]:
    """Replaces the numbers of the inputs in `wrt`, or of every input if `wrt` is empty."""

    def put(ops: Backend, leaf: Any) -> Any:
        return ops.constant(np.asarray(change(numbers(ops, leaf).astype(np.float64))), leaf)

    def changed(sample: Sample) -> Sample:
        whole, chosen = sample.mapped(put), sample.targets if sample.wrt else sample.floats
        pairs = zip(whole.leaves, sample.leaves, strict=True)
        return sample.filled(new if i in chosen else old for i, (new, old) in enumerate(pairs))

    return changed


def _scaled(x: Numbers) -> Numbers:
    largest = np.max(np.abs(x), initial=0.0, where=np.isfinite(x))
    return x * (_LARGE / largest) if largest else np.full(x.shape, _LARGE)


def _one_row(sample: Sample) -> Sample | None:
    arrays = {name: value for name, value in sample.named.items() if owner(value) is not None}
    rows = next((len(array) for array in arrays.values() if len(array.shape)), 0)
    if not rows:
        return None
    first = {name: array[:1] for name, array in arrays.items() if tuple(array.shape[:1]) == (rows,)}
    rest = {name: value[:1] if is_row(value) and len(value) == rows else value for name, value in sample.rest.items()}
    return replace(sample, arrays=trees.flatten({**sample.named, **first}), rest=rest)


EDGES: Final[dict[str, Callable[[Sample], Sample | None]]] = {
    "zeros": _changed(lambda x: np.zeros(x.shape)),
    "tiny": _changed(lambda x: np.where(x < 0, -_TINY, _TINY)),
    "large": _changed(_scaled),
    "one_row": _one_row,
    "half": lambda sample: sample.cast("float16"),
}
"""Each replaces the inputs in one way; None if that is impossible."""


def edge_samples(sample: Sample, given: Any, edges: Edges) -> dict[str, Sample | None]:
    """The inputs of each requested edge; the author's own are merged into `given`."""
    made: dict[str, Sample | None] = {}
    for name, own in (dict.fromkeys(EDGES) if edges is None else _named(edges)).items():
        if own is not None:
            whole = {**given, **own} if is_mapping(own) and is_mapping(given) else own
            made[name] = Sample.of(sample.term, whole, sample.wrt)
        else:
            made[name] = EDGES[name](sample) if sample.floats else None
    return made


def _named(edges: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Each edge with the author's inputs, or None for a built-in one."""
    if isinstance(edges, str) or not isinstance(cast("object", edges), Sequence | Mapping):
        raise OptionError("check_term", "edges", edges, "names of edges, or {name: inputs}")
    chosen = dict(edges) if isinstance(edges, Mapping) else dict.fromkeys(edges)
    for name, own in chosen.items():
        if own is None and name not in EDGES:
            raise OptionError("check_term", "edges", name, f"{', '.join(EDGES)}, or {{name: inputs}} for your own")
    return chosen


def check_edge(name: str, sample: Sample | None) -> Check:
    """Value and gradient are finite, or the term rejects the inputs with an error of this library."""
    label = f"edge {name}"
    if sample is None:
        return Check(label, "skipped", "no input has " + ("rows" if name == "one_row" else "floats"))
    try:
        evaluation = _evaluated(sample)
    except PenaltiesError as error:
        # Our own error class means that the term rejects these inputs on purpose.
        deliberate = isinstance(error.__cause__, PenaltiesError)
        return Check(label, "passed" if deliberate else "failed", f"rejected: {error}" if deliberate else str(error))
    value = number(evaluation)
    if not np.isfinite(value):
        return Check(label, "failed", f"the value is {value}")
    if evaluation.gradient is None:
        return Check(label, "passed", f"value {value:.6g}")
    for target, gradient in sample.gradients(evaluation).items():
        found = np.zeros(()) if gradient is None else numbers(sample.ops, gradient)
        if not np.all(np.isfinite(found)):
            bad = float(found[~np.isfinite(found)][0])
            where = sample.label(target)
            return Check(label, "failed", f"the gradient at {where} has {bad}; the value is {value:.6g}")
    return Check(label, "passed", f"value {value:.6g}, gradient finite")


def _evaluated(sample: Sample) -> Evaluation:
    """With its gradient if it has one."""
    try:
        return sample.evaluate(gradient=sample.term.differentiable)
    except GradientError:  # NumPy has no autograd, and the term returns no gradient
        return sample.evaluate()
