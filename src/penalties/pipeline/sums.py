"""Adding up the gradients of terms."""

from collections.abc import Sequence
from typing import Any

from ..backends import Backend
from .term import Weight

__all__ = ["Sums"]


class Sums:
    """`Σ coefficient·gradient`, leaf by leaf; each gradient may be freed once it is added."""

    __slots__ = ("leaves", "ops", "owned")

    def __init__(self, ops: Backend, count: int) -> None:
        """Start with no gradient, for this many leaves."""
        self.ops: Backend = ops
        self.leaves: list[Any] = [None] * count
        self.owned: list[bool] = [False] * count

    def add(self, gradients: Sequence[Any], coefficient: Weight | None) -> None:
        """Add a gradient times its coefficient, or as it is with None; a gradient of None is 0."""
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                before, owned = self.leaves[index], self.owned[index]
                if before is None and coefficient is None:
                    self.leaves[index] = gradient
                else:
                    factor = 1.0 if coefficient is None else coefficient
                    self.leaves[index] = self.ops.accumulate(before, gradient, factor, owned=owned)
                # The first may be the caller's or autograd's own array; from the second on the sum is ours.
                self.owned[index] = before is not None
