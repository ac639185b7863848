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
from .lengths import squares_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["sweep"]

_BLOCK: Final = 4096
_WARPS: Final = 4
_TABLES: Final = 16
"""How many tables are kept: a model has one or two, and its gradients tend to return to where they were."""


@triton.jit
def _pointer(TABLE, which, like, W: constexpr):
    return tl.multiple_of(tl.load(TABLE + which).to(like.dtype), W)


@triton.jit
def _bent(x, delta):
    """What a bent part has for x: its sign, which is 0 for NaN as in PyTorch, or a line between −1 and 1."""
    if delta == 0.0:
        s = tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))
    else:
        s = tl.minimum(tl.maximum(x / delta, -1.0, tl.PropagateNan.ALL), 1.0, tl.PropagateNan.ALL)
    return s


@triton.jit
def _sweeping(
    LIKE, TO, XS, GS, SIZES, WHICH, FIRST, SUMS, straight, d0, d1, d2, b0, b1, b2,
    DELTAS: constexpr, ADDS: constexpr, COUNT: constexpr, BLOCK: constexpr, W: constexpr,
):  # fmt: skip
    """The gradient of a block, and the sums of x², s·x, s², the squared gradient, and s·x and s² of further deltas."""
    block = tl.program_id(0)
    which = tl.load(WHICH + block)
    size = tl.load(SIZES + which)
    start = (block - tl.load(FIRST + which)).to(tl.int64) * BLOCK
    X = _pointer(XS, which, LIKE, W)
    at = start + tl.arange(0, BLOCK)
    whole = start + BLOCK <= size
    if whole:
        x = tl.load(X + at, eviction_policy="evict_first").to(tl.float32)
    else:
        x = tl.load(X + at, mask=at < size, other=0.0).to(tl.float32)
    gradient = straight * x
    if straight == 0.0:
        gradient = tl.zeros([BLOCK], tl.float32)
    s = tl.zeros([BLOCK], tl.float32)
    if DELTAS > 0:
        s = _bent(x, d0)
        gradient += b0 * s
    t = s
    u = s
    if DELTAS > 1:
        t = _bent(x, d1)
        gradient += b1 * t
    if DELTAS > 2:
        u = _bent(x, d2)
        gradient += b2 * u
    # All sums by one reduction: each has to wait for all warps.
    if DELTAS > 1:
        evens = tl.join(tl.join(x * x, t * x), tl.join(s * s, u * x))
        odds = tl.join(tl.join(s * x, t * t), tl.join(gradient * gradient, u * u))
        sums = tl.reshape(tl.sum(tl.join(evens, odds), axis=0), [COUNT])
    else:
        sums = tl.reshape(tl.sum(tl.join(tl.join(x * x, s * s), tl.join(s * x, gradient * gradient)), axis=0), [COUNT])
    columns = tl.arange(0, COUNT)
    wide = sums.to(tl.float64)
    squares = tl.sum(tl.where(columns == 0, sums, 0.0), axis=0)
    if not ((squares > 1e-23) & (squares < 1e38)):
        wide = tl.where(columns == 0, squares_of(x), wide)
    squares = tl.sum(tl.where(columns == 3, sums, 0.0), axis=0)
    if not ((squares > 1e-23) & (squares < 1e38)):
        wide = tl.where(columns == 3, squares_of(gradient), wide)
    tl.store(SUMS + block * COUNT + columns, wide)
    G = _pointer(GS, which, TO, W)
    if whole:
        if ADDS:
            gradient += tl.load(G + at, eviction_policy="evict_first").to(tl.float32)
        tl.store(G + at, gradient.to(G.dtype.element_ty), eviction_policy="evict_first")
    else:
        if ADDS:
            gradient += tl.load(G + at, mask=at < size, other=0.0).to(tl.float32)
        tl.store(G + at, gradient.to(G.dtype.element_ty), mask=at < size)


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

    Tensors are contiguous, not empty, of one dtype and on one device, their gradients too.
    """
    like = xs[0]
    with on(like):
        sizes, which, first = _blocks(like.device, tuple([x.numel() for x in xs]))
        x_table, x_aligned = _addresses(like.device, tuple([x.data_ptr() for x in xs]))
        g_table, g_aligned = _addresses(like.device, tuple([gradient.data_ptr() for gradient in gradients]))
        blocks, count = which.numel(), 4 if len(deltas) < 2 else 8
        sums = torch.empty(blocks, count, dtype=torch.float64, device=like.device)
        unused = [0.0] * (MOST_DELTAS - len(deltas))
        _sweeping[(blocks,)](
            like, gradients[0], x_table, g_table, sizes, which, first, sums, straight,
            *deltas, *unused, *bends, *unused,
            DELTAS=len(deltas), ADDS=add, COUNT=count, BLOCK=_BLOCK, W=16 if x_aligned and g_aligned else 1,
            num_warps=_WARPS,
        )  # fmt: skip
        return sums.sum(0)
