"""Groups of terms that one kernel computes: what of their terms and inputs the kernel needs, and what it returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ...kernels import distributions, elementwise
from ..evaluation import Evaluation
from ..inputs import CallInputs
from ..targets import Targets

__all__ = ["Combined", "FusedDistributions", "FusedElements", "FusedGroup"]


class Combined(NamedTuple):
    """The gradient of all terms of a group together."""

    gradients: list[Any]
    """`Σ coefficient·gradient` at each leaf of the targets; None where no term reads it."""
    norm: Any = None
    """The length of that; None where it was not measured."""
    in_place: bool = False
    """Whether it was added to the leaves' `.grad`, and `gradients` are those."""
    leaves: Sequence[Any] = ()
    """In a call that takes no gradients, what these gradients are at: the total is stitched to it."""


class FusedGroup(Protocol):
    """How one kernel computes all terms of a group: what it reads, by name, and never an array of a call."""

    def evaluate(
        self, inputs: CallInputs, targets: Targets | None, coefficients: Sequence[float], *, accumulate: bool
    ) -> tuple[list[Evaluation], Combined | None]:
        """An evaluation for each term, and with targets the gradient of all of them.

        With `accumulate` it is added to the leaves' own `.grad`.
        """
        ...


@dataclass(frozen=True, slots=True)
class FusedElements:
    """Element-wise penalties of the same leaves."""

    leaves: Sequence[int]
    """The indices of the leaves, among those of the targets."""
    parts: Sequence[elementwise.Part]

    def evaluate(
        self, inputs: CallInputs, targets: Targets | None, coefficients: Sequence[float], *, accumulate: bool
    ) -> tuple[list[Evaluation], Combined | None]:
        """One sweep."""
        assert targets is not None, "planned for a call with gradients"
        arrays = [targets.leaves[index] for index in self.leaves]
        into = [array.grad for array in arrays] if accumulate else None
        swept = elementwise.value_and_gradients(arrays, self.parts, coefficients, into)
        names = [targets.names[index] for index in self.leaves]
        evaluations = [
            _measured(value, [norm], names[:1], targets) for value, norm in zip(swept.values, swept.norms, strict=True)
        ]
        return evaluations, _combined(swept, self.leaves, targets, in_place=accumulate)


@dataclass(frozen=True, slots=True)
class FusedDistributions:
    """Class-wise penalties of the same one or two arrays."""

    names: Sequence[str]
    """Of these arrays."""
    leaves: Sequence[int | None]
    """The index of each array among the leaves of the targets; None where no gradient is taken at it."""
    parts: Sequence[distributions.Part]
    masks: Sequence[str | None]
    """The name of the mask of each part."""
    labels: Sequence[str | None]
    """The name of the targets of each part."""

    def evaluate(
        self, inputs: CallInputs, targets: Targets | None, coefficients: Sequence[float], *, accumulate: bool
    ) -> tuple[list[Evaluation], Combined | None]:
        """Two or three sweeps."""
        x, *others = [inputs.find("a kernel", name) for name in self.names]
        y = others[0] if others else None
        parts = self._bound(inputs)
        if targets is None:
            return [Evaluation(value) for value in distributions.values(x, y, parts)], None
        at = [leaf is not None for leaf in self.leaves]
        swept = distributions.value_and_gradients(x, y, parts, coefficients, at)
        leaves = [leaf for leaf in self.leaves if leaf is not None]
        names = [targets.names[leaf] for leaf in leaves]
        evaluations = [
            _measured(value, norms, names, targets) for value, norms in zip(swept.values, swept.norms, strict=True)
        ]
        return evaluations, _combined(swept, leaves, targets)

    def _bound(self, inputs: CallInputs) -> Sequence[distributions.Part]:
        """The parts with the masks and targets of this call."""
        if not any(self.masks) and not any(self.labels):
            return self.parts

        def found(name: str | None) -> Any:
            return None if name is None else inputs.find("a kernel", name)

        return [
            part._replace(mask=found(mask), labels=found(labels))
            for part, mask, labels in zip(self.parts, self.masks, self.labels, strict=True)
        ]


def _measured(value: Any, norms: Sequence[Any], names: Sequence[str], targets: Targets) -> Evaluation:
    present = {name: norm for name, norm in zip(names, norms, strict=True) if norm is not None}
    if not present:
        return Evaluation(value, grad_error=targets.unread)
    first, *others = present.values()
    whole = targets.ops.norm([first, *others]) if others else first
    return Evaluation(value, grad_norm=whole, grad_norms=present if len(targets.nests) > 1 else {})


def _combined(swept: Any, leaves: Sequence[int], targets: Targets, *, in_place: bool = False) -> Combined:
    gradients: list[Any] = [None] * len(targets.leaves)
    for leaf, gradient in zip(leaves, swept.gradients, strict=True):
        gradients[leaf] = gradient if gradients[leaf] is None else gradients[leaf] + gradient
    return Combined(gradients, swept.norm, in_place)
