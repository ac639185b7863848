"""From evaluations to the output: the total, its gradient, norms, the Gram matrix. Coefficients are applied here."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..backends import Backend, owner
from ..errors import BackendError, TermError
from .evaluation import Evaluation
from .inputs import CallInputs
from .output import LossOutput, TermOutput
from .plan import Job
from .targets import Targets
from .term import Weight

__all__ = ["Combination", "Sums", "cosines_of"]


class Sums:
    """`Σ coefficient·gradient`, leaf by leaf; each gradient may be freed once it is added."""

    __slots__ = ("leaves", "ops", "owned")

    def __init__(self, ops: Backend, count: int) -> None:
        """Start with no gradient, for this many leaves."""
        self.ops: Backend = ops
        self.leaves: list[Any] = [None] * count
        self.owned: list[bool] = [False] * count

    def add(self, gradients: Sequence[Any], coefficient: Weight) -> None:
        """Add a gradient times its coefficient; None is 0."""
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                before, owned = self.leaves[index], self.owned[index]
                self.leaves[index] = self.ops.accumulate(before, gradient, coefficient, owned=owned)
                # The first may be the caller's or autograd's own array; from the second on the sum is ours.
                self.owned[index] = before is not None


class Combination:
    """What the terms of one call add up to; takes their evaluations as they come."""

    __slots__ = ("attached", "detached", "held", "hold", "inputs", "jobs", "keep", "learned", "outputs", "targets")

    def __init__(
        self, jobs: Sequence[Job], inputs: CallInputs, targets: Targets | None, *, hold: bool, keep: bool
    ) -> None:
        """Nothing yet. With `hold` gradients are held for the Gram matrix, with `keep` the output has them, too."""
        self.jobs: Sequence[Job] = jobs
        self.inputs: CallInputs = inputs
        self.targets: Targets | None = targets
        self.hold: bool = hold
        self.keep: bool = keep
        self.outputs: list[TermOutput | None] = [None] * len(jobs)
        self.held: list[Sequence[Any] | None] = [None] * len(jobs)
        if targets is not None:
            self.detached: Sums = Sums(targets.ops, len(targets.leaves))
            """Of the values that are numbers by now: the sum is stitched into the graph of the total."""
            self.attached: Sums = Sums(targets.ops, len(targets.leaves))
            """Of the values that are still on the caller's graph."""
            self.learned: list[tuple[Any, Weight]] = []
            """Values whose weights require a gradient themselves, perhaps of our inputs."""

    def take(self, job: Job, evaluation: Evaluation) -> None:
        """Add an evaluation."""
        gradient = None
        if self.targets is not None and evaluation.error is None:
            gradient = self._take_gradient(self.targets, job, evaluation)
        self.outputs[job.index] = TermOutput(
            job.term.name,
            evaluation.value,
            job.weight,
            evaluation.grad_norm,
            evaluation.grad_error,
            evaluation.grad_norms,
            evaluation.metrics,
            evaluation.duration,
            evaluation.error,
            gradient,
        )

    def _take_gradient(self, targets: Targets, job: Job, evaluation: Evaluation) -> Any:
        if getattr(job.weight, "requires_grad", False):
            self.learned.append((evaluation.value, job.weight))
        if evaluation.gradient is None:
            return None
        leaves = targets.leaves_of(evaluation.gradient)
        sums = self.detached if targets.ops.detached(evaluation.value) else self.attached
        sums.add(leaves, job.weight)
        if self.keep:
            # One array each: autograd may return one tensor for two inputs, or one number expanded.
            present = iter(targets.ops.separate([leaf for leaf in leaves if leaf is not None]))
            leaves = [None if leaf is None else next(present) for leaf in leaves]
        if self.hold:
            self.held[job.index] = leaves
        if not self.keep:
            return None
        structured = targets.structured(leaves)
        return next(iter(structured.values())) if self.inputs.alone else structured

    def take_combined(self, gradients: Sequence[Any]) -> None:
        """Add the gradient of a fused group, which contains the coefficients."""
        self.detached.add(gradients, 1.0)

    def fail(self, job: Job, error: BaseException) -> None:
        """Replace an evaluation that was already added by an error. The sum of gradients includes it, so it is lost."""
        self.targets = None
        self.outputs[job.index] = TermOutput(job.term.name, None, job.weight, error=error)

    def output(self, *, state: Mapping[str, Any], has_base: bool, cosines: bool, record: Any = None) -> LossOutput:
        """The output of the call."""
        terms = [cast("TermOutput", output) for output in self.outputs]
        ops, like = self._library(terms)
        values: list[Any] = []
        weights: list[Weight] = []
        for job, term in zip(self.jobs, terms, strict=True):
            if term.value is None:
                continue
            values.append(_in_library(job, term.value, ops, like))
            weights.append(term.weight)
            if owner(term.weight) not in (None, ops):
                raise BackendError(
                    f"{term.name}: the weight is not a {ops.LIBRARY} array, as the value is; convert the weight"
                )
        base = terms.pop(0) if has_base else None
        base_value = None
        if base is not None and base.value is not None:
            base_value, values, weights = values[0], values[1:], weights[1:]
        regularizers = ops.weighted_sum(values, weights) if values else ops.zero(like)
        total = regularizers if base_value is None else ops.add([base_value, regularizers])
        by_name = {term.name: term for term in terms}
        targets = self.targets
        if targets is None:
            return LossOutput(total, by_name, base, regularizers, state=state, record=record)
        total = self._stitched(targets, total)
        leaves = self._total_gradient(targets)
        structured = targets.structured(leaves)
        gram = self._gram(targets) if self.hold else None
        return LossOutput(
            total,
            by_name,
            base,
            regularizers,
            targets.ops.norm(leaves),
            next(iter(structured.values())) if self.inputs.alone else structured,
            cosines_of(targets.ops, gram) if cosines else None,
            state,
            gram,
            record,
        )

    def _library(self, terms: Sequence[TermOutput]) -> tuple[Backend, Any]:
        """The library that the total is in: that of the first value that can have a gradient."""
        for job, term in zip(self.jobs, terms, strict=True):
            ops = owner(term.value) if job.term.differentiable else None
            if ops is not None:
                return ops, term.value
        if self.inputs.ops is not None:
            return self.inputs.ops, self.inputs.like
        blank = np.zeros(())
        return cast("Backend", owner(blank)), blank

    def _stitched(self, targets: Targets, total: Any) -> Any:
        """The total as a function of the inputs: the gradient of the detached terms is known."""
        pairs = [pair for pair in zip(targets.leaves, self.detached.leaves, strict=True) if pair[1] is not None]
        if not pairs:
            return total
        return targets.ops.stitch(total, [leaf for leaf, _ in pairs], [gradient for _, gradient in pairs])

    def _total_gradient(self, targets: Targets) -> list[Any]:
        """The gradient of the total at each leaf."""
        ops, leaves = targets.ops, targets.leaves
        gradients: Sequence[Any] = self.detached.leaves
        if any(gradient is not None for gradient in self.attached.leaves):
            self.attached.add(self.detached.leaves, 1.0)
            gradients = self.attached.leaves
        if self.learned:
            gradients = ops.add_weight_gradients(gradients, leaves, self.learned)
        filled = [
            # In the dtype of the input: sums at float16 are float32 up to here.
            ops.zeros_like(leaf)
            if gradient is None
            else gradient
            if gradient.dtype == leaf.dtype
            else ops.cast(gradient, leaf)
            for leaf, gradient in zip(leaves, gradients, strict=True)
        ]
        # One array each, that may be written to without changing another, or a gradient that is kept.
        held = [gradient for term in self.held if term is not None for gradient in term if gradient is not None]
        return ops.separate([*held, *filled])[len(held) :]

    def _gram(self, targets: Targets) -> Any:
        nothing = [None] * len(targets.leaves)
        return targets.ops.gram([leaves or nothing for leaves in self.held])


def cosines_of(ops: Backend, gram: Any) -> Any:
    """The matrix of cosines of a Gram matrix; NaN for a vector that is 0."""
    lengths = ops.sqrt(gram.diagonal())
    return gram / (lengths[:, None] * lengths[None, :])


def _in_library(job: Job, value: Any, library: Backend, like: Any) -> Any:
    """A constant of another library as one of this; a value that should have a gradient cannot come from elsewhere."""
    ops = owner(value)
    if ops is library or ops is None:
        return value
    if job.term.differentiable:
        raise TermError(
            job.term.name,
            f"returned a {ops.LIBRARY} array and the terms before it {library.LIBRARY} arrays; expected one library",
        )
    return library.as_array(value, like)
