"""Squared lengths of tensors: read once, with no copy in float64."""

# pyright: basic

from typing import TYPE_CHECKING, Final

import torch
import triton
import triton.language as tl
from triton.language import constexpr

from .devices import on

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["squared_length"]

_BLOCK: Final = 4096


@triton.jit
def _squares_of(x):
    """The sum of x², by way of a power of two near the largest, so that no square leaves the range of float32."""
    exponent = tl.max(tl.abs(x), axis=0).to(tl.int32, bitcast=True) & 0x7F800000
    usual = (exponent > 0) & (exponent < 0x7F000000)
    scale = tl.where(usual, (0x7F000000 - exponent).to(tl.float32, bitcast=True), 1.0)
    inverse = 1.0 / scale.to(tl.float64)
    return tl.sum((x * scale) * (x * scale), axis=0).to(tl.float64) * inverse * inverse


@triton.jit
def _measuring(X, SUMS, size, BLOCK: constexpr):
    """The sum of x² of a block."""
    block = tl.program_id(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < size, other=0.0).to(tl.float32)
    plain = tl.sum(x * x, axis=0)
    wide = plain.to(tl.float64)
    if not ((plain > 1e-23) & (plain < 1e38)):
        wide = _squares_of(x)
    tl.store(SUMS + block, wide)


def squared_length(x: "Tensor") -> "Tensor":
    """The sum of the squares of a contiguous tensor, in float64."""
    blocks = -(-x.numel() // _BLOCK)
    sums = torch.empty(blocks, dtype=torch.float64, device=x.device)
    if blocks:
        with on(x):
            _measuring[(blocks,)](x, sums, x.numel(), BLOCK=_BLOCK, num_warps=4)
    return sums.sum()
