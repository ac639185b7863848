"""Norms and cosines of gradients that somebody takes term by term."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ..backends import owner
from .combine import Sums, cosines_of
from .output import LossOutput, TermOutput, Terms

__all__ = ["measured"]


def measured(
    out: LossOutput, slopes: Callable[[Any], list[Any]], count: int, what: str, cosines: bool = True
) -> LossOutput:
    """The output with norms, and cosines, of what `slopes` gives for each value that has a graph.

    Those are as many tensors as `count` says, None where there is no dependence; `what` says what they are at.
    """
    ops = owner(out.total)
    assert ops is not None, "a total with a graph is an array"
    rows = [*([] if out.base is None else [out.base]), *out.terms.values()]
    gathered: list[list[Any]] = []
    tracked: list[TermOutput] = []
    summed = Sums(ops, count)
    for row in rows:
        gradients: list[Any] = [None] * count
        if row.value is not None and getattr(row.value, "requires_grad", False):
            gradients = slopes(row.value)
        present = [gradient for gradient in gradients if gradient is not None]
        if row.value is None:
            tracked.append(row)
        elif present:
            tracked.append(dataclasses.replace(row, grad_norm=ops.norm(present), grad_error=None))
        else:
            reason = f"its value does not depend on {what} by operations that PyTorch can differentiate"
            tracked.append(dataclasses.replace(row, grad_norm=None, grad_error=reason))
        gathered.append(gradients)
        summed.add(gradients, row.weight)
    present = [gradient for gradient in summed.leaves if gradient is not None]
    return LossOutput(
        out.total,
        Terms.of(tracked if out.base is None else tracked[1:]),
        None if out.base is None else tracked[0],
        out.regularizer_total,
        ops.norm(present) if present else None,
        cosines=cosines_of(ops, gathered) if cosines else None,
        state=out.state,
    )
