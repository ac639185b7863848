"""The gradient of class-wise sums over rows: one sweep, with the norms of its parts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from .devices import on
from .rows import LN2, LOWEST, SMALLEST, SQUARES, ZERO, Launch, Rows, exp2, log2, tile_of, tiles_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["gradient"]


@triton.jit
def _coefficient(ROWS, constant, kind, kind_stride, row, row_stride, HAS_ROWS: constexpr):
    if HAS_ROWS:
        return constant + tl.load(ROWS + kind * kind_stride + row * row_stride)
    return constant


@triton.jit
def _product(coefficient, value):
    """Their product; 0 where the coefficient is, whatever the value."""
    return tl.where(coefficient == 0.0, 0.0, coefficient * value)


@triton.jit
def _differentiating(
    X, Y, LABELS, FLAGS, VALUES, SAVED, ROWS, G, NORMS, N, V, x_stride, y_stride, kind_stride, row_stride, scale, slope,
    PER, c0, c1, c2, c3, c4,
    ENTROPY: constexpr, KL: constexpr, REVERSE: constexpr, SYMMETRIC: constexpr, JS: constexpr, LABEL: constexpr,
    HAS_Y: constexpr, HAS_FLAGS: constexpr, HAS_ROWS: constexpr, HAS_NORMS: constexpr, LOGITS: constexpr,
    T: constexpr, W: constexpr, NVIDIA: constexpr,
):  # fmt: skip
    """The gradient of a piece of a row, and the squared norms of its parts."""
    row = tl.program_id(0)
    N = tl.cast(N, tl.int64)
    kind_stride = tl.cast(kind_stride, tl.int64)
    x_start, shift, first, last = tiles_of(row, x_stride, V, PER, T, W)
    y_start = tl.multiple_of(row.to(tl.int64) * y_stride - shift, W)
    # The gradient is contiguous, as x is where W is above 1.
    g_start = tl.multiple_of(row.to(tl.int64) * V - shift, W)
    c_entropy = _coefficient(ROWS, c0, 0, kind_stride, row, row_stride, HAS_ROWS)
    c_kl = _coefficient(ROWS, c1, 1, kind_stride, row, row_stride, HAS_ROWS)
    c_reverse = _coefficient(ROWS, c2, 2, kind_stride, row, row_stride, HAS_ROWS)
    c_js = _coefficient(ROWS, c3, 3, kind_stride, row, row_stride, HAS_ROWS)
    c_label = _coefficient(ROWS, c4, 4, kind_stride, row, row_stride, HAS_ROWS)
    used = True
    with_y = True
    if HAS_FLAGS:
        used = tl.load(FLAGS + row) > 0
        with_y = tl.load(FLAGS + row) > 1
    x_log_sum = tl.load(SAVED + 2 * N + row)
    y_log_sum = tl.load(SAVED + 3 * N + row)
    # What the logarithms in each gradient are relative to, in base 2.
    entropy = -1.0 / LN2
    kl = -1.0 / LN2
    middle = 0.0
    label = 0
    one = 1.0
    if LABEL:
        which = tl.load(LABELS + row)
        # The gradient of a label that is not a class is NaN. Compared in 64 bits: a large one would wrap around.
        inside = (which >= 0) & (which < V)
        one = tl.where(inside, 1.0, float("nan"))
        label = tl.where(inside, which, 0).to(tl.int32)
    if LOGITS:
        entropy = tl.load(VALUES + row) / LN2
        kl = tl.load(VALUES + N + row) / LN2
        middle = tl.load(SAVED + row) / LN2
    of_x = (c_entropy + c_kl + 0.5 * c_js) * slope * LN2
    of_y = c_kl * slope * LN2
    of_middle = 0.5 * c_js * slope * LN2
    of_p = (_product(c_entropy, entropy) + _product(c_kl, kl) + 0.5 * _product(c_js, middle)) * slope * LN2
    of_q = c_reverse * slope
    of_label = _product(c_label, one) * slope
    if LOGITS:
        of_p += of_label - of_q
    n0 = tl.zeros([T], tl.float32)
    n1 = tl.zeros([T], tl.float32)
    n2 = tl.zeros([T], tl.float32)
    n3 = tl.zeros([T], tl.float32)
    n4 = tl.zeros([T], tl.float32)
    n5 = tl.zeros([T], tl.float32)
    n6 = tl.zeros([T], tl.float32)
    for tile in range(first, last):
        at = tile * (T * W) + tl.arange(0, T)[:, None] * W + tl.arange(0, W)[None, :]
        out = tl.zeros([T, W], tl.float32)
        if used:
            x, y, _ = tile_of(X, Y, x_start, y_start, tile, shift, V, scale, HAS_Y, T, W)
            x -= x_log_sum
            y -= y_log_sum
            if HAS_Y and HAS_FLAGS:
                # Where nothing of y counts in this row, NaN does not, either.
                y = tl.where(with_y, y, x)
            p = exp2(x, NVIDIA)
            u = of_x * x - of_p
            if HAS_Y:
                if KL:
                    d = y
                    if LOGITS:
                        u -= of_y * d
                    else:
                        d = tl.where(x > ZERO, tl.where(y <= LOWEST, float("-inf"), y), x)
                        u -= _product(of_y, d)
                if JS or REVERSE:
                    q = exp2(y, NVIDIA)
                if JS:
                    g = log2(tl.maximum(p + q, SMALLEST, tl.PropagateNan.ALL), NVIDIA) - 1.0
                    u -= of_middle * g
            out = p * u
            if REVERSE:
                out -= of_q * q
            if LABEL:
                is_label = at - shift == label
                out += tl.where(is_label, of_label, 0.0)
            if HAS_NORMS:
                n6 += tl.sum(out * out, axis=1)
                if ENTROPY:
                    z = p * (x - entropy)
                    n0 += tl.sum(z * z, axis=1)
                if KL:
                    z = p * (x - d - kl)
                    n1 += tl.sum(z * z, axis=1)
                if REVERSE:
                    d = q
                    if LOGITS:
                        d -= p
                    n2 += tl.sum(d * d, axis=1)
                if SYMMETRIC:
                    z = 0.5 * (z * LN2 - d)
                    n5 += tl.sum(z * z, axis=1)
                if JS:
                    z = p * (x - g - middle)
                    n3 += tl.sum(z * z, axis=1)
                if LABEL:
                    z = tl.where(is_label, one, 0.0)
                    if LOGITS:
                        z -= p * one
                    n4 += tl.sum(z * z, axis=1)
        if (tile == 0) | ((tile + 1) * (T * W) > V + shift):
            tl.store(G + g_start + at, out.to(G.dtype.element_ty), mask=(at >= shift) & (at < V + shift))
        else:
            tl.store(G + g_start + at, out.to(G.dtype.element_ty))
    if HAS_NORMS:
        splits = tl.num_programs(1)
        to = NORMS + row * splits + tl.program_id(1)
        stride = N * splits
        square = slope * slope
        tl.store(to, tl.sum(n0, axis=0) * square * LN2 * LN2)
        tl.store(to + stride, tl.sum(n1, axis=0) * square * LN2 * LN2)
        tl.store(to + 2 * stride, tl.sum(n2, axis=0) * square)
        tl.store(to + 3 * stride, tl.sum(n3, axis=0) * square * LN2 * LN2 * 0.25)
        tl.store(to + 4 * stride, tl.sum(n4, axis=0) * square)
        tl.store(to + 5 * stride, tl.sum(n5, axis=0) * square)
        tl.store(to + 6 * stride, tl.sum(n6, axis=0))


def gradient(
    x: "Tensor", y: "Tensor | None", labels: "Tensor | None", flags: "Tensor | None", found: Rows,
    constants: Sequence[float], coefficients: "Tensor | None", sums: Sequence[bool], temperature: float, logits: bool,
    norms: bool,
) -> "Tensor":  # fmt: skip
    """The gradient at x of the sums of all rows, each times its coefficient.

    The coefficient of a sum is a constant, plus a number for each row where `coefficients`, `(SUMS, rows)`, are given,
    or one for all rows, `(SUMS, 1)`.
    `flags` are 0 for a row that does not count, 1 for one of which y does not, else 2; None is 2 for all of them.
    With `norms` the squared norms of each row, without coefficients but for the last, go to `found.squares`.
    """
    launch = Launch(x, y, temperature)
    count, splits = launch.rows, launch.splits
    strides = (0, 0) if coefficients is None else coefficients.expand(-1, count).stride()
    # With norms it is kept for a backward, before which a loss may be scaled: float16 would lose what is small.
    dtype = torch.float32 if norms and x.dtype == torch.float16 else x.dtype
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    if count:
        entropy, kl, reverse, js, label = sums
        squares = None if not norms else found.squares if splits == 1 else launch.new(SQUARES, count, splits)
        with on(x):
            _differentiating[(count, splits)](
                launch.x, launch.y, labels, flags, found.sums, found.saved, coefficients, out, squares, count,
                launch.columns, launch.x.stride(0), launch.y.stride(0), *strides, launch.scale, 1 / temperature,
                launch.per, *constants,
                ENTROPY=entropy, KL=kl, REVERSE=reverse, SYMMETRIC=kl and reverse, JS=js, LABEL=label,
                HAS_FLAGS=flags is not None, HAS_ROWS=coefficients is not None, HAS_NORMS=norms, LOGITS=logits,
                **launch.constants,
            )  # fmt: skip
        if squares is not None and splits > 1:
            torch.sum(squares, 2, out=found.squares)
    return out
