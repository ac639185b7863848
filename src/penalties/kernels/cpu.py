"""Kernels for a CPU: large arrays a tile at a time, each used while it is in the cache."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ..backends.torch.lengths import dot
from ..functional.penalty import Elementwise

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["gradient_of", "sweep", "too_small", "unsupported"]

_TILE: Final = 2**17
"""Elements of a tile: half a megabyte of float32 stays in the cache of a core from one operation to the next."""

_SMALLEST: Final = 3 * _TILE
"""Below, the whole array stays in the cache, and automatic differentiation is as fast."""


def unsupported(x: "Tensor") -> str | None:
    """Why the kernels here do not take this tensor; None where they do."""
    import torch

    if not x.is_cpu:
        return f"no kernel for {x.device.type} tensors"
    if x.layout is not torch.strided or x.dtype not in (torch.float32, torch.float64):
        return f"no kernel for {x.dtype} tensors of layout {x.layout}"
    return too_small(x)


def too_small(x: "Tensor") -> str | None:
    """Why a sweep over this tensor is no faster than its operations; None where it is."""
    return f"{x.numel()} elements are too few for a kernel to pay off on a CPU" if x.numel() < _SMALLEST else None


def sweep(
    x: "Tensor", gradient: "Tensor", straight: float, deltas: Sequence[float], bends: Sequence[float], *, add: bool
) -> "Tensor":
    """The sums of x², of s·x and s² for the first delta, of the squared gradient, and of s·x and s² for the others.

    The gradient, `straight·x + Σ bend·s`, is written to `gradient`, or added to what is there.
    """
    import torch

    flat: Any = x.reshape(-1)
    into: Any = gradient.view(-1)
    sums: list[Tensor] = []
    for piece, target in zip(flat.split(_TILE), into.split(_TILE), strict=True):
        total = torch.empty_like(target) if add else target
        products: list[Tensor] = []
        # Not a product with 0: of an infinite element that is NaN.
        torch.mul(piece, straight, out=total) if straight else total.zero_()
        for delta, bend in zip(deltas, bends, strict=True):
            signs = piece.sign() if delta == 0.0 else (piece / delta).clamp_(-1.0, 1.0)
            products += [dot(signs, piece), dot(signs, signs)]
            total.add_(signs, alpha=bend)
        if add:
            target.add_(total)
        products = products or [piece.new_zeros(())] * 2
        sums.append(torch.stack([dot(piece, piece), *products[:2], dot(total, total), *products[2:]]))
    return torch.stack(sums).sum(0)


def gradient_of(form: Elementwise, x: "Tensor") -> "Tensor":
    """The gradient of one penalty by itself."""
    import torch

    # Not a product with 0: of an infinite element that is NaN.
    gradient = form.straight * x if form.straight else torch.zeros_like(x)
    if form.bent:
        gradient += form.bent * (x.sign() if form.delta == 0.0 else (x / form.delta).clamp_(-1.0, 1.0))
    return gradient
