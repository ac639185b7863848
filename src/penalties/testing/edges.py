"""A term at edge cases of its inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

import numpy as np

from ..backends import Backend
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


def _zeros(sample: Sample) -> Sample:
    return _changed(sample, lambda x: np.zeros(x.shape))


def _tiny(sample: Sample) -> Sample:
    return _changed(sample, lambda x: np.where(x < 0, -_TINY, _TINY))


def _large(sample: Sample) -> Sample:
    def scaled(x: Numbers) -> Numbers:
        largest = np.max(np.abs(x), initial=0.0, where=np.isfinite(x))
        return x * (_LARGE / largest) if largest else np.full(x.shape, _LARGE)

    return _changed(sample, scaled)


def _one_row(sample: Sample) -> Sample | None:
    arrays = [flat.leaves[0] for flat in sample.nests.values() if flat.structure is None]
    rows = next((len(array) for array in arrays if len(array.shape)), 0)
    if not rows:
        return None
    nests = {
        name: flat._replace(leaves=[flat.leaves[0][:1]])
        if flat.structure is None and tuple(flat.leaves[0].shape[:1]) == (rows,)
        else flat
        for name, flat in sample.nests.items()
    }
    rest = {name: value[:1] if is_row(value) and len(value) == rows else value for name, value in sample.rest.items()}
    return replace(sample, nests=nests, rest=rest)


def _half(sample: Sample) -> Sample:
    return sample.cast("float16")


EDGES: Final[dict[str, Callable[[Sample], Sample | None]]] = {
    "zeros": _zeros,
    "tiny": _tiny,
    "large": _large,
    "one_row": _one_row,
    "half": _half,
}
"""Each replaces the inputs in one way; None if that is impossible."""


def _changed(sample: Sample, change: Callable[[Numbers], Any]) -> Sample:
    """Replace the numbers of the inputs in `wrt`, or of every input if `wrt` is empty."""
    names = sample.wrt or tuple(sample.nests)

    def put(ops: Backend, leaf: Any) -> Any:
        return ops.constant(np.asarray(change(numbers(ops, leaf).astype(np.float64))), leaf)

    whole = sample.mapped(put)
    nests = {name: (whole if name in names else sample).nests[name] for name in sample.nests}
    return replace(sample, nests=nests)


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
        ops = sample.nests[target[0]].ops
        found = np.zeros(()) if gradient is None else numbers(ops, gradient)
        if not np.all(np.isfinite(found)):
            bad = float(found[~np.isfinite(found)][0])
            return Check(
                label, "failed", f"the gradient at {sample.label(*target)} has {bad}; the value is {value:.6g}"
            )
    return Check(label, "passed", f"value {value:.6g}, gradient finite")


def _evaluated(sample: Sample) -> Evaluation:
    """With its gradient if it has one."""
    try:
        return sample.evaluate(gradient=sample.term.differentiable)
    except GradientError:  # NumPy has no autograd, and the term returns no gradient
        return sample.evaluate()
