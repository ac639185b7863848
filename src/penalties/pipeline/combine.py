"""From evaluations to the output: the total, its gradient, norms, the Gram matrix. Coefficients are applied here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..backends import Backend, owner
from ..errors import BackendError, GradientError, TermError
from .accumulating import accumulate
from .evaluation import Evaluation
from .groups.fused import Combined
from .groups.lazy import NO_GRADIENT
from .inputs import CallInputs
from .output import LossOutput, TermOutput
from .plan import Job
from .sums import Sums
from .targets import Gradients, Targets
from .term import Weight

__all__ = ["Combination", "compared"]


class Combination:
    """What the terms of one call add up to; takes their evaluations as they come."""

    __slots__ = (
        "attached",
        "combined",
        "detached",
        "formed",
        "gradients",
        "held",
        "inputs",
        "jobs",
        "learned",
        "outputs",
        "separate",
        "targets",
    )

    def __init__(self, jobs: Sequence[Job], inputs: CallInputs, targets: Targets | None, gradients: Gradients) -> None:
        """Nothing yet."""
        self.jobs: Sequence[Job] = jobs
        self.inputs: CallInputs = inputs
        self.targets: Targets | None = targets
        self.gradients: Gradients = gradients
        self.combined: list[Combined] = []
        """Gradients of fused groups."""
        self.formed: set[int] = set()
        """The indices of terms whose gradient was formed with their value, in a call that takes no gradients."""
        self.separate: list[tuple[Any, Weight]] = []
        """The norms of gradients that came by themselves, and their coefficients."""
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
        self.separate.append((evaluation.grad_norm, job.weight))
        if self.gradients.keep:
            # One array each: autograd may return one tensor for two inputs, or one number expanded.
            present = iter(targets.ops.separate([leaf for leaf in leaves if leaf is not None]))
            leaves = [None if leaf is None else next(present) for leaf in leaves]
        if self.gradients.hold:
            self.held[job.index] = leaves
        if not self.gradients.keep:
            return None
        structured = targets.structured(leaves)
        return next(iter(structured.values())) if self.inputs.alone else structured

    def take_combined(self, combined: Combined, jobs: Sequence[Job]) -> None:
        """Add the gradient of a fused group of these terms, which contains the coefficients."""
        self.combined.append(combined)
        if self.targets is None:
            self.formed |= {job.index for job in jobs}
        elif not combined.in_place:
            self.detached.add(combined.gradients, None)

    def fail(self, job: Job, error: BaseException) -> None:
        """Replace an evaluation that was already added by an error. The sum of gradients includes it, so it is lost."""
        self.targets = None
        self.outputs[job.index] = TermOutput(job.term.name, None, job.weight, error=error)

    def output(self, *, state: Mapping[str, Any], has_base: bool, record: Any = None) -> LossOutput:
        """The output of the call."""
        terms = [cast("TermOutput", output) for output in self.outputs]
        ops, like = self._library(terms)
        values: list[Any] = []
        weights: list[Weight] = []
        for job, term in zip(self.jobs, terms, strict=True):
            if term.value is None:
                continue
            value = ops.stop_gradient(term.value) if job.index in self.formed else term.value
            values.append(_in_library(job, value, ops, like))
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
            for one in self.combined:
                total = ops.stitch(total, one.leaves, one.gradients)
                regularizers = ops.barred(regularizers, one.leaves, NO_GRADIENT)
            return LossOutput(total, by_name, base, regularizers, state=state, record=record)
        if self.gradients.accumulate:
            length = self._accumulated(targets, total)
            total = targets.ops.stop_gradient(total)
            return LossOutput(total, by_name, base, regularizers, length, state=state, record=record)
        total = self._stitched(targets, total)
        leaves = self._total_gradient(targets)
        structured = targets.structured(leaves)
        gram, between = self._compared(targets) if self.gradients.hold else (None, None)
        return LossOutput(
            total,
            by_name,
            base,
            regularizers,
            self._norm(targets, leaves),
            next(iter(structured.values())) if self.inputs.alone else structured,
            between if self.gradients.cosines else None,
            state,
            gram,
            record,
        )

    def _norm(self, targets: Targets, leaves: Sequence[Any]) -> Any:
        """The norm of the total gradient; where that is of one kernel, or of one term, it has been measured."""
        # A group of terms that read no target has no gradient.
        combined = [one for one in self.combined if any(gradient is not None for gradient in one.gradients)]
        if not self.learned and len(combined) + len(self.separate) == 1:
            if combined and combined[0].norm is not None:
                return combined[0].norm
            for length, weight in self.separate:
                if isinstance(weight, int | float):
                    return length * weight
        return targets.ops.norm(leaves)

    def _accumulated(self, targets: Targets, total: Any) -> Any:
        """Add the gradient to the `.grad` of the leaves, and return its norm."""
        if targets.ops.captures(total, targets.leaves):
            raise GradientError(
                "value_and_grad: accumulate=True adds the gradient at the inputs alone, and a term or a weight depends "
                "on other tensors that require one; make them inputs, or use accumulate=False and total.backward()"
            )
        if self.combined and self.combined[0].in_place:
            return self.combined[0].norm
        gradients = self._total_gradient(targets)
        accumulate(targets.leaves, gradients)
        return self._norm(targets, gradients)

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

    def _compared(self, targets: Targets) -> tuple[Any, Any]:
        nothing = [None] * len(targets.leaves)
        return compared(targets.ops, [leaves or nothing for leaves in self.held])


def compared(ops: Backend, gradients: Sequence[Sequence[Any]]) -> tuple[Any, Any]:
    """The Gram matrix of some gradients, and the matrix of their cosines, NaN for a gradient that is 0."""
    products, scales = ops.gram(gradients)
    lengths = ops.sqrt(products.diagonal())
    norms = lengths[:, None] * lengths[None, :]
    rows, columns = scales[:, None], scales[None, :]
    # The smaller factor first: a product is out of range only where the result is.
    smaller, larger = ops.where(rows < columns, rows, columns), ops.where(rows < columns, columns, rows)
    return products * smaller * larger, products / ops.where(norms > 0, norms, math.nan)


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
