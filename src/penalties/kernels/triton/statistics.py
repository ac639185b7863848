"""Class-wise sums over rows of logits or log-probabilities, and their gradient: one sweep over a row or two, and one.

With `α = log₂ p` and `β = log₂ q` of a row, a sweep gives the log-sum-exps of both and every sum but Jensen–Shannon's,
which needs them first, hence a second sweep. The gradient takes another sweep. Rows do not stay in a cache between
sweeps, so one kernel for all of them would read as much memory as these three.

An element costs nearly as many instructions as its memory takes time. So: logarithms to base 2, which the hardware has;
no masks but in the first and last tile of a row; reductions inside a thread, over the elements that it loads at once.
"""

# ruff: noqa: E741 (letters as in the formulas)

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from .devices import on
from .rows import LN2, LOWEST, SAVED, SMALLEST, SQUARES, SUMS, ZERO, Launch, Rows, exp2, log2, tile_of, tiles_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["statistics"]


@triton.jit
def _online(x, y, m, l, e, k, gap, ENTROPY: constexpr, KL: constexpr, NVIDIA: constexpr):
    """Add a tile to the sums of exp x, exp x·(x − m) and exp x·(x − y), relative to the maximum m.

    `gap` is the largest x where y is −inf.
    """
    largest = tl.maximum(m, tl.max(x, axis=1))
    m, l, e, k = _relative(m, l, e, k, largest, NVIDIA)
    z = x - m[:, None]
    w = exp2(z, NVIDIA)
    l += tl.sum(w, axis=1)
    if ENTROPY:
        e += tl.sum(w * z, axis=1)
    if KL:
        k += tl.sum(w * (x - y), axis=1)
        gap = tl.maximum(gap, tl.max(tl.where(y <= LOWEST, x, LOWEST), axis=1))
    return m, l, e, k, gap


@triton.jit
def _relative(m, l, e, k, largest, NVIDIA: constexpr):
    """The sums relative to a larger maximum."""
    r = exp2(m - largest, NVIDIA)
    return largest, l * r, (e + l * (m - largest)) * r, k * r


@triton.jit
def _merged(m, l, e, k, gap, NVIDIA: constexpr):
    """The sums of all lanes, or pieces, as one."""
    largest = tl.max(m, axis=0)
    _, l, e, k = _relative(m, l, e, k, largest, NVIDIA)
    return largest, tl.sum(l, axis=0), tl.sum(e, axis=0), tl.sum(k, axis=0), tl.max(gap, axis=0)


@triton.jit
def _is_hidden(SHOWN, row, HAS_SHOWN: constexpr):
    if HAS_SHOWN:
        return tl.load(SHOWN + row) == 0
    return False


@triton.jit
def _normalizing(
    X, Y, SHOWN, PIECES, V, x_stride, y_stride, scale, PER,
    ENTROPY: constexpr, KL: constexpr, REVERSE: constexpr, HAS_Y: constexpr, HAS_SHOWN: constexpr,
    T: constexpr, W: constexpr, NVIDIA: constexpr,
):  # fmt: skip
    """The online sums of a piece of a row of logits: five of x, five of y."""
    row = tl.program_id(0)
    if _is_hidden(SHOWN, row, HAS_SHOWN):
        return
    x_start, shift, first, last = tiles_of(row, x_stride, V, PER, T, W)
    y_start = tl.multiple_of(row.to(tl.int64) * y_stride - shift, W)
    m = tl.full([T], LOWEST, tl.float32)
    l = tl.zeros([T], tl.float32)
    e = tl.zeros([T], tl.float32)
    k = tl.zeros([T], tl.float32)
    gap = tl.full([T], LOWEST, tl.float32)
    n = tl.full([T], LOWEST, tl.float32)
    o = tl.zeros([T], tl.float32)
    f = tl.zeros([T], tl.float32)
    r = tl.zeros([T], tl.float32)
    hole = tl.full([T], LOWEST, tl.float32)
    for tile in range(first, last):
        x, y, _ = tile_of(X, Y, x_start, y_start, tile, shift, V, scale, HAS_Y, T, W)
        m, l, e, k, gap = _online(x, y, m, l, e, k, gap, ENTROPY, KL, NVIDIA)
        if HAS_Y:
            n, o, f, r, hole = _online(y, x, n, o, f, r, hole, False, REVERSE, NVIDIA)
    out = PIECES + (row.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * 10
    _store_piece(out, m, l, e, k, gap, NVIDIA)
    if HAS_Y:
        _store_piece(out + 5, n, o, f, r, hole, NVIDIA)


@triton.jit
def _store_piece(out, m, l, e, k, gap, NVIDIA: constexpr):
    m, l, e, k, gap = _merged(m, l, e, k, gap, NVIDIA)
    tl.store(out, m)
    tl.store(out + 1, l)
    tl.store(out + 2, e)
    tl.store(out + 3, k)
    tl.store(out + 4, gap)


@triton.jit
def _load_pieces(pieces, at, mask, NVIDIA: constexpr):
    """Maximum, logarithm of Σ exp, Σ p·log p and Σ p·(x − y) of a row in base 2; whether q = 0 where p is not."""
    m = tl.load(pieces + at * 10, mask=mask, other=LOWEST)
    l = tl.load(pieces + at * 10 + 1, mask=mask, other=0.0)
    e = tl.load(pieces + at * 10 + 2, mask=mask, other=0.0)
    k = tl.load(pieces + at * 10 + 3, mask=mask, other=0.0)
    gap = tl.load(pieces + at * 10 + 4, mask=mask, other=LOWEST)
    m, l, e, k, gap = _merged(m, l, e, k, gap, NVIDIA)
    # A row of nothing but −inf is not a distribution.
    log_l = tl.where(m <= LOWEST, float("nan"), tl.log2(l))
    return m, log_l, e / l - log_l, k / l, (gap > LOWEST) & (gap - m - log_l > ZERO)


@triton.jit
def _finishing(
    X, LABELS, SHOWN, PIECES, VALUES, SAVED, N, V, x_stride, scale, splits,
    HAS_Y: constexpr, HAS_LABELS: constexpr, HAS_SHOWN: constexpr, LOGITS: constexpr, POWER: constexpr,
    NVIDIA: constexpr,
):  # fmt: skip
    """The sums of a row, from those of its pieces."""
    row = tl.program_id(0).to(tl.int64)
    N = tl.cast(N, tl.int64)
    entropy = 0.0
    kl = 0.0
    reverse = 0.0
    x_log_sum = 0.0
    y_log_sum = 0.0
    label = 0.0
    if not _is_hidden(SHOWN, row, HAS_SHOWN):
        if HAS_LABELS:
            which = tl.load(LABELS + row)
            # One that is not a class is NaN, and nothing is read for it.
            inside = (which >= 0) & (which < V)
            label = tl.load(X + row * x_stride + which, mask=inside, other=float("nan")).to(tl.float32) * scale
        at = tl.arange(0, POWER)
        mask = at < splits
        pieces = PIECES + row * splits * 10
        if LOGITS:
            x_largest, x_log, entropy, kl, gap = _load_pieces(pieces, at, mask, NVIDIA)
            x_log_sum = x_largest + x_log
            label = (label - x_largest) - x_log
            if HAS_Y:
                y_largest, y_log, _, reverse, hole = _load_pieces(pieces + 5, at, mask, NVIDIA)
                y_log_sum = y_largest + y_log
                # Not the difference of the log-sum-exps, which are rounded to the size of the logits.
                kl = (kl - (x_largest - y_largest)) - (x_log - y_log)
                reverse = (reverse - (y_largest - x_largest)) - (y_log - x_log)
                # Added, so that NaN stays NaN.
                kl += tl.where(gap, float("inf"), 0.0)
                reverse += tl.where(hole, float("inf"), 0.0)
    tl.store(VALUES + row, entropy * LN2)
    tl.store(VALUES + N + row, kl * LN2)
    tl.store(VALUES + 2 * N + row, reverse * LN2)
    tl.store(VALUES + 3 * N + row, 0.0)
    tl.store(VALUES + 4 * N + row, label * LN2)
    tl.store(SAVED + row, 0.0)
    tl.store(SAVED + N + row, 0.0)
    tl.store(SAVED + 2 * N + row, x_log_sum)
    tl.store(SAVED + 3 * N + row, y_log_sum)


@triton.jit
def _summing(
    X, Y, SHOWN, SAVED, PIECES, N, V, x_stride, y_stride, scale, PER,
    ENTROPY: constexpr, KL: constexpr, REVERSE: constexpr, JS: constexpr, LOGITS: constexpr,
    HAS_Y: constexpr, HAS_SHOWN: constexpr, T: constexpr, W: constexpr, NVIDIA: constexpr,
):  # fmt: skip
    """The sums of a piece of a row, once its log-sum-exp is known: of logits, only Jensen–Shannon's."""
    row = tl.program_id(0)
    splits = tl.num_programs(1)
    N = tl.cast(N, tl.int64)
    out = PIECES + row * splits + tl.program_id(1)
    stride = N * splits
    e = tl.zeros([T], tl.float32)
    k = tl.zeros([T], tl.float32)
    r = tl.zeros([T], tl.float32)
    a = tl.zeros([T], tl.float32)
    b = tl.zeros([T], tl.float32)
    if not _is_hidden(SHOWN, row, HAS_SHOWN):
        x_start, shift, first, last = tiles_of(row, x_stride, V, PER, T, W)
        y_start = tl.multiple_of(row.to(tl.int64) * y_stride - shift, W)
        x_log_sum = tl.load(SAVED + 2 * N + row)
        y_log_sum = tl.load(SAVED + 3 * N + row)
        for tile in range(first, last):
            x, y, _ = tile_of(X, Y, x_start, y_start, tile, shift, V, scale, HAS_Y, T, W)
            x -= x_log_sum
            y -= y_log_sum
            p = exp2(x, NVIDIA)
            if ENTROPY:
                e += tl.sum(p * x, axis=1)
            if KL:
                k += tl.sum(p * tl.where(x > ZERO, tl.where(y <= LOWEST, float("inf"), x - y), 0.0), axis=1)
            if HAS_Y:
                q = exp2(y, NVIDIA)
                if REVERSE:
                    r += tl.sum(q * tl.where(y > ZERO, tl.where(x <= LOWEST, float("inf"), y - x), 0.0), axis=1)
                if JS:
                    middle = log2(tl.maximum(p + q, SMALLEST, tl.PropagateNan.ALL), NVIDIA) - 1.0
                    a += tl.sum(p * (x - middle), axis=1)
                    b += tl.sum(q * (y - middle), axis=1)
    p_middle = tl.sum(a, axis=0) * LN2
    q_middle = tl.sum(b, axis=0) * LN2
    if not LOGITS:
        tl.store(out, tl.sum(e, axis=0) * LN2)
        tl.store(out + stride, tl.sum(k, axis=0) * LN2)
        tl.store(out + 2 * stride, tl.sum(r, axis=0) * LN2)
    tl.store(out + 3 * stride, 0.5 * (p_middle + q_middle))
    tl.store(out + 5 * stride, p_middle)
    tl.store(out + 6 * stride, q_middle)


def statistics(
    x: "Tensor", y: "Tensor | None", labels: "Tensor | None", shown: "Tensor | None", sums: Sequence[bool],
    temperature: float, logits: bool,
) -> Rows:  # fmt: skip
    """The sums of each row, and what their gradient needs besides.

    `sums` says which are wanted; the others are 0. So are those of rows where `shown` is 0, which are not read.
    `labels` has the index of a class for each row, in 64 bits; one that is not a class gives NaN.
    """
    launch = Launch(x, y, temperature)
    x, y, count, columns, splits = launch.x, launch.y, launch.rows, launch.columns, launch.splits
    rows = Rows.of(launch.new(SUMS + SAVED + SQUARES, count))
    if not count:
        return rows
    grid, strides = (count, splits), (x.stride(0), y.stride(0))
    entropy, kl, reverse, js, _ = sums
    hides = shown is not None
    with on(x):
        pieces = launch.new(count, splits, 10) if logits else rows.numbers
        if logits:
            _normalizing[grid](
                x, y, shown, pieces, columns, *strides, launch.scale, launch.per,
                ENTROPY=entropy, KL=kl, REVERSE=reverse, HAS_SHOWN=hides, **launch.constants,
            )  # fmt: skip
        _finishing[(count,)](
            x, labels, shown, pieces, rows.sums, rows.saved, count, columns, x.stride(0), launch.scale, splits,
            HAS_Y=launch.constants["HAS_Y"], HAS_LABELS=labels is not None, HAS_SHOWN=hides, LOGITS=logits,
            POWER=1 << (splits - 1).bit_length(), NVIDIA=launch.constants["NVIDIA"], num_warps=1,
        )  # fmt: skip
        if js or not logits:
            # The saved numbers come after the sums, so that a kernel can write to both.
            parts = (
                rows.numbers
                if splits == 1
                else torch.zeros_like(rows.numbers[: SUMS + 2, :, None].expand(-1, -1, splits))
            )
            _summing[grid](
                x, y, shown, rows.saved, parts, count, columns, *strides, launch.scale, launch.per,
                ENTROPY=entropy, KL=kl, REVERSE=reverse, JS=js, LOGITS=logits, HAS_SHOWN=hides, **launch.constants,
            )  # fmt: skip
            if splits > 1:
                rows.numbers[: SUMS + 2] += parts.sum(2)
    return rows
