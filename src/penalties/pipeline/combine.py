"""From terms to the total: values, gradients, norms and cosines."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..backends import Backend, owner
from ..errors import BackendError, TermError
from .output import BASE, LossOutput, TermOutput, Terms
from .reading import Row
from .targets import Targets
from .term import Term, Weight

__all__ = ["Gradients", "Sums", "combined", "cosines_of"]


class Sums:
    """A sum of gradients, leaf by leaf, that takes them as they come."""

    __slots__ = ("leaves", "ops", "owned")

    def __init__(self, ops: Backend, count: int) -> None:
        """Nothing yet, at so many leaves."""
        self.ops: Backend = ops
        self.leaves: list[Any] = [None] * count
        self.owned: list[bool] = [False] * count

    def add(self, gradients: Sequence[Any], weight: Weight) -> None:
        """Add a gradient times its weight; None is 0."""
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                before = self.leaves[place]
                self.leaves[place] = self.ops.accumulate(before, gradient, weight, owned=self.owned[place])
                # The first one may be autograd's own; from the second on the sum is ours.
                self.owned[place] = before is not None

    def own(self, place: int, like: Any) -> Any:
        """The sum at a leaf as an array of ours, that may be added to in place."""
        if not self.owned[place]:
            whole, before = self.ops.zeros_like(like), self.leaves[place]
            self.leaves[place] = whole if before is None else self.ops.accumulate(whole, before, 1.0, owned=True)
            self.owned[place] = True
        return self.leaves[place]


class Gradients:
    """The gradients of the terms of one call, added up as they come: each is freed before the next."""

    __slots__ = ("bound", "cosines", "kept", "learned", "loose", "targets")

    def __init__(self, targets: Targets, cosines: bool) -> None:
        """Nothing yet."""
        self.targets: Targets = targets
        self.cosines: bool = cosines
        self.loose: Sums = Sums(targets.ops, len(targets.leaves))
        """Of the terms whose values hang on nothing any more."""
        self.bound: Sums = Sums(targets.ops, len(targets.leaves))
        """Of those whose values are still on the caller's graph."""
        self.kept: dict[str, Sequence[Any]] = {}
        """Those of all terms, where cosines are wanted."""
        self.learned: list[tuple[Any, Weight]] = []
        """Values and their weights that require a gradient themselves, which may be of our inputs."""

    def scale(self, weight: Weight) -> float:
        """What a term's gradient is to be multiplied by as it is computed, which is free.

        Its weight, if the norm can be told from the product: not 0, nor so small or large that digits are lost.
        """
        return weight if type(weight) is float and 1e-6 <= weight <= 1e6 else 1.0

    def take(
        self, name: str, value: Any, leaves: Sequence[Any] | None, weight: Weight, scale: float
    ) -> tuple[Any, Mapping[str, Any]]:
        """Add a gradient of this scale; gives its norm over all inputs, and over each if there are several."""
        ops = self.targets.ops
        if getattr(weight, "requires_grad", False):
            self.learned.append((value, weight))
        if leaves is None:
            return None, {}
        present = [gradient for gradient in leaves if gradient is not None]
        # The norm first: the sum then finds the gradient in the cache, and pushes it out.
        norm = ops.norm(present) / scale
        norms: dict[str, Any] = {}
        if len(self.targets.nests) > 1:
            for one in self.targets.nests:
                belongs = [g for g, whose in zip(leaves, self.targets.names, strict=True) if whose == one]
                here = [gradient for gradient in belongs if gradient is not None]
                if here:
                    norms[one] = ops.norm(here) / scale
        sums = self.loose if ops.loose(value) else self.bound
        sums.add(leaves, 1.0 if scale is weight else weight)
        if self.cosines:
            self.kept[name] = leaves
        return norm, norms

    def stitched(self, total: Any) -> Any:
        """The total as a function of the inputs: what the loose terms add to its gradient is known."""
        pairs = [pair for pair in zip(self.targets.leaves, self.loose.leaves, strict=True) if pair[1] is not None]
        if not pairs:
            return total
        return self.targets.ops.stitch(total, [leaf for leaf, _ in pairs], [gradient for _, gradient in pairs])

    def total(self) -> tuple[list[Any], Any]:
        """The gradient of the total at each leaf, and its norm."""
        ops, leaves = self.targets.ops, self.targets.leaves
        gradients = self.loose.leaves
        if any(gradient is not None for gradient in self.bound.leaves):
            self.bound.add(self.loose.leaves, 1.0)
            gradients = self.bound.leaves
        if self.learned:
            gradients = self._with_weights(gradients)
        filled = [
            ops.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(leaves, gradients, strict=True)
        ]
        return ops.separate(filled), ops.norm(filled)

    def _with_weights(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """The sum with `value · ∂weight` added, where a weight depends on an input; only PyTorch's weights know."""
        import torch

        places = [place for place, leaf in enumerate(self.targets.leaves) if leaf.requires_grad]
        if not places or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return gradients
        share: Any = sum(self.targets.ops.stop_gradient(value) * weight for value, weight in self.learned)
        points = [self.targets.leaves[place] for place in places]
        found = torch.autograd.grad(share, points, retain_graph=True, allow_unused=True)
        sums = list(gradients)
        for place, gradient in zip(places, cast("Sequence[Any]", found), strict=True):
            if gradient is not None:
                sums[place] = gradient if sums[place] is None else sums[place] + gradient
        return sums

    def matrix(self, names: Sequence[str]) -> Any:
        """The cosines between these terms, NaN for one without a gradient."""
        nothing = [None] * len(self.targets.leaves)
        return cosines_of(self.targets.ops, [self.kept.get(name, nothing) for name in names])


def cosines_of(ops: Backend, rows: Sequence[Sequence[Any]]) -> Any:
    """The matrix of cosines between rows, each some arrays taken as one vector; NaN where one is 0."""
    products = ops.gram(rows)
    lengths = ops.sqrt(products.diagonal())
    return products / (lengths[:, None] * lengths[None, :])


def combined(
    terms: Sequence[Term],
    rows: Sequence[Row],
    base: Term | None,
    ops: Backend | None,
    like: Any,
    gradients: Gradients | None,
    state: Mapping[str, Any],
    *,
    single: bool,
    bare: bool,
) -> Any:
    """The output of a call, or its `bare` total, of the terms that ran and their rows; the base loss comes first."""
    library, like = _library(terms, rows, ops, like)
    kind = cast("type[Any]", type(like))
    values: list[Any] = []
    weights: list[Weight] = []
    for place, row in enumerate(rows):
        value, weight = row[1], row[2]
        if type(value) is not kind:
            if value is None:
                continue
            if owner(value) is not library:
                value = _foreign(terms[place], value, library, like)
        if type(weight) is not float and owner(weight) not in (None, library):
            name = row[0]
            raise BackendError(f"{name}: the weight is no {library.LIBRARY} array, as the value is; convert it")
        values.append(value)
        weights.append(weight)
    base_output = base_value = None
    if base is not None and terms and terms[0] is base:
        base_output, rows = TermOutput(*rows[0]), rows[1:]
        if base_output.value is not None:
            base_value, values, weights = values[0], values[1:], weights[1:]
    regularizers = library.weighted_sum(values, weights) if values else library.zero(like)
    total = regularizers if base_value is None else library.add([base_value, regularizers])
    if bare:
        return total
    outputs = Terms(rows)
    if gradients is None:
        return LossOutput(total, outputs, base_output, regularizers, state=state)
    total = gradients.stitched(total)
    leaves, norm = gradients.total()
    structured = gradients.targets.structured(leaves)
    names = [*([] if base_output is None else [BASE]), *[row[0] for row in rows]]
    return LossOutput(
        total,
        outputs,
        base_output,
        regularizers,
        norm,
        next(iter(structured.values())) if single else structured,
        gradients.matrix(names) if gradients.cosines else None,
        state,
    )


def _library(terms: Sequence[Term], rows: Sequence[Row], ops: Backend | None, like: Any) -> tuple[Backend, Any]:
    """The library that the total is in: that of the first value that can have a gradient."""
    if rows and ops is not None and type(rows[0][1]) is type(like) and terms[0].differentiable:
        return ops, rows[0][1]
    for term, row in zip(terms, rows, strict=True):
        if term.differentiable and row[1] is not None:
            found = owner(row[1])
            assert found is not None, "a value is an array"
            return found, row[1]
    if ops is not None:
        return ops, like
    blank = np.zeros(())
    numpy = owner(blank)
    assert numpy is not None, "an array of NumPy's"
    return numpy, blank


def _foreign(term: Term, value: Any, library: Backend, like: Any) -> Any:
    """A constant of another library as one of this; a value that should have a gradient cannot come from elsewhere."""
    ops = owner(value)
    assert ops is not None, "a value is an array"
    if term.differentiable:
        raise TermError(
            term.name,
            f"returned a {ops.LIBRARY} array and the terms before it {library.LIBRARY} arrays; expected one library",
        )
    return library.as_array(value, like)
