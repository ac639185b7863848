"""Element-wise penalties of many tensors in one launch: every sum, and the gradient of all of them together.

A block of a tensor is read once, and its gradient written once, or read, added to and written. A table on the device
says which tensor each block belongs to, and where tensors and gradients lie.
"""

# pyright: basic

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from ..elementwise import MOST_DELTAS
from .devices import on

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["sweep"]

_BLOCK: Final = 8192
_WARPS: Final = 4
_LANES: Final = 64 * _WARPS
"""Two vectors for each thread at a time. All of a block at once took 213 registers, and few programs ran together."""
_STEEPEST: Final = 3e38
"""One over a delta must not be infinite: its product with 0 is NaN."""
_TABLES: Final = 16
"""How many tables are kept: a model has one or two, and its gradients tend to return to where they were."""


@triton.jit
def _pointer(TABLE, which, like, W: constexpr):
    """Where a tensor is: at a multiple of 16 bytes if a thread loads more than one element at once."""
    return tl.multiple_of(tl.load(TABLE + which).to(like.dtype), 16 if W > 1 else 1)


@triton.jit
def _tile(X, at, size, edge):
    if edge:
        x = tl.load(X + at, mask=at < size, other=0.0).to(tl.float32)
    else:
        x = tl.load(X + at, eviction_policy="evict_first").to(tl.float32)
    return x


@triton.jit
def _line(x, steep):
    """A line through 0, between −1 and 1."""
    return tl.minimum(tl.maximum(steep * x, -1.0, tl.PropagateNan.ALL), 1.0, tl.PropagateNan.ALL)


@triton.jit
def _swept(
    X, G, size, straight, steep0, steep1, steep2, b0, b1, b2,
    DELTAS: constexpr, SIGNS: constexpr, ADDS: constexpr, COUNT: constexpr, T: constexpr, W: constexpr,
    WIDE: constexpr,
):  # fmt: skip
    """The sums of a block, `WIDE` in float64; otherwise its gradient is written, too."""
    lanes = tl.arange(0, T)[:, None] * W + tl.arange(0, W)[None, :]
    xx = tl.zeros([T], tl.float64 if WIDE else tl.float32)
    sx, ss, gg, tx, tt, ux, uu = xx, xx, xx, xx, xx, xx, xx
    for first in range(0, size, T * W):
        at = first + lanes
        edge = first + T * W > size
        x = _tile(X, at, size, edge)
        total = _tile(G, at, size, edge) if ADDS and not WIDE else 0.0
        # Not a product with 0: of an infinite element that is NaN.
        gradient = tl.where(straight == 0.0, 0.0, straight * x)
        if DELTAS > 0:
            # The sign of NaN is 0, as in PyTorch.
            s = (x > 0).to(tl.float32) - (x < 0).to(tl.float32) if SIGNS else _line(x, steep0)
            gradient += b0 * s
            sx += tl.sum(s.to(xx.dtype) * x, axis=1)
            ss += tl.sum(s.to(xx.dtype) * s, axis=1)
        if DELTAS > 1:
            t = _line(x, steep1)
            gradient += b1 * t
            tx += tl.sum(t.to(xx.dtype) * x, axis=1)
            tt += tl.sum(t.to(xx.dtype) * t, axis=1)
        if DELTAS > 2:
            u = _line(x, steep2)
            gradient += b2 * u
            ux += tl.sum(u.to(xx.dtype) * x, axis=1)
            uu += tl.sum(u.to(xx.dtype) * u, axis=1)
        xx += tl.sum(x.to(xx.dtype) * x, axis=1)
        gg += tl.sum(gradient.to(xx.dtype) * gradient, axis=1)
        if not WIDE:
            total += gradient
            if edge:
                tl.store(G + at, total.to(G.dtype.element_ty), mask=at < size)
            else:
                tl.store(G + at, total.to(G.dtype.element_ty), eviction_policy="evict_first")
    # All sums by one reduction: each has to wait for all warps.
    if COUNT == 8:
        sums = tl.join(tl.join(tl.join(xx, tx), tl.join(ss, ux)), tl.join(tl.join(sx, tt), tl.join(gg, uu)))
    else:
        sums = tl.join(tl.join(xx, ss), tl.join(sx, gg))
    return tl.reshape(tl.sum(sums, axis=0), [COUNT])


@triton.jit
def _sweeping(
    LIKE, TO, XS, GS, SIZES, WHICH, FIRST, SUMS, straight, steep0, steep1, steep2, b0, b1, b2,
    DELTAS: constexpr, SIGNS: constexpr, ADDS: constexpr, COUNT: constexpr, BLOCK: constexpr, T: constexpr,
    W: constexpr,
):  # fmt: skip
    """The gradient of a block, and the sums of x², s·x, s², the squared gradient, and s·x and s² of further deltas."""
    block = tl.program_id(0)
    which = tl.load(WHICH + block)
    start = (block - tl.load(FIRST + which)).to(tl.int64) * BLOCK
    size = tl.minimum(tl.load(SIZES + which) - start, BLOCK).to(tl.int32)
    X = _pointer(XS, which, LIKE, W) + start
    G = _pointer(GS, which, TO, W) + start
    sums = _swept(
        X, G, size, straight, steep0, steep1, steep2, b0, b1, b2, DELTAS, SIGNS, ADDS, COUNT, T, W, False
    )  # fmt: skip
    wide = sums.to(tl.float64)
    columns = tl.arange(0, COUNT)
    squares = (columns == 0) | (columns == 3)
    squares |= ((columns == 2) & (DELTAS > 0)) | ((columns == 5) & (DELTAS > 1)) | ((columns == 7) & (DELTAS > 2))
    lost = squares & ~((sums > 1e-23) & (sums < 1e38))
    if tl.max(lost.to(tl.int32), axis=0) > 0:
        # Some squares are out of the range of float32.
        wide = _swept(
            X, G, size, straight, steep0, steep1, steep2, b0, b1, b2, DELTAS, SIGNS, ADDS, COUNT, T // 2, W, True
        )  # fmt: skip
    tl.store(SUMS + block * COUNT + columns, wide)


@functools.lru_cache(maxsize=_TABLES)
def _blocks(device: torch.device, sizes: tuple[int, ...]) -> "tuple[Tensor, ...]":
    """On the device: the sizes, the tensor of each block, and the first block of each tensor."""
    counts = torch.tensor([-(-size // _BLOCK) for size in sizes])
    which = torch.repeat_interleave(torch.arange(len(sizes), dtype=torch.int32), counts)
    host = torch.tensor(sizes), which, (counts.cumsum(0) - counts).to(torch.int32)
    return tuple(part.to(device) for part in host)


@functools.lru_cache(maxsize=2 * _TABLES)
def _addresses(device: torch.device, addresses: tuple[int, ...]) -> "tuple[Tensor, bool]":
    """On the device, where tensors lie; and whether all are aligned. Gradients may move when parameters do not."""
    return torch.tensor(addresses).to(device), all(address % 16 == 0 for address in addresses)


def sweep(
    xs: "Sequence[Tensor]", gradients: "Sequence[Tensor]", straight: float, deltas: Sequence[float],
    bends: Sequence[float], *, add: bool,
) -> "Tensor":  # fmt: skip
    """The sums of `cpu.sweep`, in float64, over all tensors; their gradient is written, or added to what is there.

    Deltas are in ascending order. Tensors are contiguous, not empty, of one dtype and on one device, and their
    gradients too.
    """
    like = xs[0]
    with on(like):
        sizes, which, first = _blocks(like.device, tuple([x.numel() for x in xs]))
        x_table, x_aligned = _addresses(like.device, tuple([x.data_ptr() for x in xs]))
        g_table, g_aligned = _addresses(like.device, tuple([gradient.data_ptr() for gradient in gradients]))
        blocks, count = which.numel(), 4 if len(deltas) < 2 else 8
        sums = torch.empty(blocks, count, dtype=torch.float64, device=like.device)
        unused = [0.0] * (MOST_DELTAS - len(deltas))
        signs = len(deltas) > 0 and deltas[0] == 0.0
        steep = [min(1 / delta, _STEEPEST) if delta else 0.0 for delta in deltas]
        _sweeping[(blocks,)](
            like, gradients[0], x_table, g_table, sizes, which, first, sums, straight, *steep, *unused, *bends, *unused,
            DELTAS=len(deltas), SIGNS=signs, ADDS=add, COUNT=count, BLOCK=_BLOCK, T=_LANES,
            W=16 // like.element_size() if x_aligned and g_aligned else 1, num_warps=_WARPS,
        )  # fmt: skip
        return sums.sum(0)
