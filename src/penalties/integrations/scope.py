"""How much a micro-batch counts in its optimizer step, for terms of each scope: the one place with this arithmetic."""

from dataclasses import dataclass
from typing import Any

from ..pipeline.term import Scope

__all__ = ["MicroBatch"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch on one rank, as a part of an optimizer step.

    A step minimises `base + Σ weight·term`, where a term is `Σ share·value` over all micro-batches and ranks:

        scope    share
        mean     the micro-batch's part of the trainer's denominator, or 1/(micro-batches · ranks)
        sum      1
        step     1/ranks, in the first micro-batch alone: parameters are the same in all of them

    The trainer goes on to multiply what it is given, for example by 1/ranks where gradients are averaged over ranks.
    `factor` is the share without that.

    >>> part = MicroBatch(4, ranks=2, applied=1 / 2)
    >>> part.factor("mean"), part.factor("sum"), part.factor("step")
    (0.25, 2.0, 1.0)
    """

    count: int = 1
    """The number of micro-batches in this step, on each rank."""
    ranks: int = 1
    part: Any = None
    """Its part of what the trainer divides by, such as tokens, over all micro-batches and ranks; None: equal parts."""
    applied: float = 1.0
    """What the trainer multiplies the loss of this micro-batch by, up to the gradient that the optimizer sees."""

    @property
    def alone(self) -> bool:
        """Whether it is the whole step, so that scopes make no difference."""
        return self.count * self.ranks == 1

    def share(self, scope: Scope) -> Any:
        """What a value of this micro-batch is multiplied by in the step's term."""
        if scope == "sum":
            return 1.0
        if scope == "step":
            return 1.0 / self.ranks
        return 1.0 / (self.count * self.ranks) if self.part is None else self.part

    def factor(self, scope: Scope) -> Any:
        """What a value is multiplied by before the trainer is given it."""
        return self.share(scope) / self.applied
