"""The sums of rows, and what they add up to, as operations that PyTorch differentiates, and compiles."""

# pyright: basic

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...errors import FIRST_ORDER, GradientError
from ..products import products, row_totals
from .gradients import gradient
from .rows import SAVED, SUMS, Rows, turned, turned_sums
from .statistics import statistics

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["row_sums", "totals"]


def row_sums(
    x: "Tensor", y: "Tensor | None", labels: "Tensor | None", shown: "Tensor | None", sums: list[bool],
    temperature: float, logits: bool,
) -> "Tensor":  # fmt: skip
    """The sums of each row, of `(SUMS, rows)`, inside a graph of torch.compile; see `statistics`."""
    return _forward(x, y, labels, shown, sums, temperature, logits)[:SUMS]


def totals(
    x: "Tensor", y: "Tensor | None", labels: "Tensor | None", shown: "Tensor | None", sums: list[bool],
    temperature: float, logits: bool, shares: "Sequence[Tensor]", plain: bool, factors: tuple[tuple[float, ...], ...],
) -> "Tensor":  # fmt: skip
    """For each row of factors, what these times the `row_totals` of all sums add up to, on the graph of x and y."""
    return _Totals.apply(x, y, labels, shown, sums, temperature, logits, plain, factors, *shares)


class _Totals(torch.autograd.Function):
    """One node in the graph, from the rows to the numbers that they add up to."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, y: torch.Tensor | None, labels: Any, shown: Any, sums: Any, temperature: Any,
        logits: Any, plain: Any, factors: Any, *shares: Any,
    ) -> torch.Tensor:  # fmt: skip
        rows = statistics(x, y, labels, shown, sums, temperature, logits)
        _save(ctx, x, y, labels, *shares, rows.numbers)
        ctx.setting = sums, temperature, logits
        ctx.plain, ctx.factors = plain, factors
        return products(row_totals(rows.sums, shares, plain=plain, squares=False), factors)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        x, y, labels, *shares, numbers = _saved(ctx)
        coefficients = products(upstream[0], tuple(zip(*ctx.factors, strict=True))).reshape(-1, SUMS, 1)
        first, *others = coefficients.unbind() if ctx.plain else (None, *coefficients.unbind())
        for share, one in zip(shares, others, strict=True):
            by_row = (one * share).masked_fill(share == 0, 0.0)
            first = by_row if first is None else first + by_row
        needed = list(ctx.needs_input_grad[:2])
        found = _gradients(x, y, labels, numbers, first, *ctx.setting, needed, even=not shares)
        if torch.is_grad_enabled():
            found = [None if one is None else _Once.apply(one, x, y) for one in found]
        return *found, *[None] * (7 + len(shares))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise GradientError(
            "forward-mode derivatives are unavailable: a kernel computed this value; PENALTIES_KERNELS=off turns "
            "kernels off"
        )


def _save(ctx: Any, *given: torch.Tensor | None) -> None:
    # A teacher's logits may come from inference mode, whose tensors autograd does not save.
    ctx.kept = [one if one is not None and one.is_inference() else None for one in given]
    ctx.save_for_backward(*(one if other is None else None for one, other in zip(given, ctx.kept, strict=True)))


def _saved(ctx: Any) -> list[Any]:
    return [other if one is None else one for one, other in zip(ctx.saved_tensors, ctx.kept, strict=True)]


class _Once(torch.autograd.Function):
    """A gradient that a kernel computed: differentiating it again would give 0, silently."""

    @staticmethod
    def forward(ctx: Any, found: torch.Tensor, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return found.view_as(found)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        raise GradientError(FIRST_ORDER)


def _gradients(
    x: torch.Tensor, y: torch.Tensor | None, labels: torch.Tensor | None, numbers: torch.Tensor,
    upstream: torch.Tensor, sums: list[bool], temperature: float, logits: bool, needed: list[bool], *,
    even: bool = False,
) -> list[Any]:  # fmt: skip
    """The gradients at x and at y; None where none is needed.

    `upstream` has a column for each row, or where all are `even` one for all of them.
    """
    nothing = [0.0] * SUMS
    setting = temperature, logits, False
    rows = Rows.of(numbers)
    found: list[Any] = [None, None]
    flags: Any = None
    if not even:
        # What counts nowhere is not read: padding, and whatever is there.
        counts = upstream != 0
        with_y = counts[1:4].any(0)
    if needed[0]:
        if not even:
            flags = counts.any(0).to(torch.int8) + with_y
        found[0] = gradient(x, y, labels, flags, rows, nothing, upstream, sums, *setting)
    if needed[1] and y is not None:
        coefficients = torch.stack(turned_sums(upstream.unbind(), torch.zeros_like(upstream[0])))
        if not even:
            flags = 2 * with_y.to(torch.int8)
        found[1] = gradient(y, x, None, flags, turned(rows), nothing, coefficients, turned_sums(sums, False), *setting)
    return found


@torch.library.custom_op("penalties::row_sums", mutates_args=())
def _forward(
    x: torch.Tensor, y: torch.Tensor | None, labels: torch.Tensor | None, shown: torch.Tensor | None, sums: list[bool],
    temperature: float, logits: bool,
) -> torch.Tensor:  # fmt: skip
    # Without the squares, which nothing fills here.
    return statistics(x, y, labels, shown, sums, temperature, logits).numbers[: SUMS + SAVED]


@_forward.register_fake
def _(x: Any, y: Any, labels: Any, shown: Any, sums: Any, temperature: Any, logits: Any) -> torch.Tensor:
    return x.new_empty((SUMS + SAVED, x.numel() // x.shape[-1]), dtype=torch.float32)


@torch.library.custom_op("penalties::row_sums_backward", mutates_args=())
def _backward(
    x: torch.Tensor, y: torch.Tensor | None, labels: torch.Tensor | None, numbers: torch.Tensor,
    upstream: torch.Tensor, sums: list[bool], temperature: float, logits: bool, needed: list[bool],
) -> list[torch.Tensor]:  # fmt: skip
    found = _gradients(x, y, labels, numbers, upstream[:SUMS].contiguous(), sums, temperature, logits, needed)
    return [x.new_empty(0) if one is None else one for one in found]


@_backward.register_fake
def _(
    x: Any, y: Any, labels: Any, numbers: Any, upstream: Any, sums: Any, temperature: Any, logits: Any, needed: Any
) -> Any:
    return [x.new_empty(x.shape) if one else x.new_empty(0) for one in needed]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, y, labels, _, *setting = inputs
    ctx.save_for_backward(x, y, labels, output)
    ctx.setting = setting


def _differentiate(ctx: Any, upstream: Any) -> Any:
    needed = [bool(one) for one in ctx.needs_input_grad[:2]]
    found = _backward(*ctx.saved_tensors, upstream, *ctx.setting, needed)
    return *(one if need else None for one, need in zip(found, needed, strict=True)), *[None] * 5


_forward.register_autograd(_differentiate, setup_context=_keep)
