"""Kernels for a CPU: large arrays a tile at a time, each used while it is in the cache."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ..backends.torch.composition import dot, in_range, norm
from ..functional.penalty import Elementwise

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["elementwise", "unsupported"]

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
    if x.numel() < _SMALLEST:
        return f"{x.numel()} elements fit the cache"
    return None


def elementwise(
    x: "Tensor", forms: Sequence[Elementwise], means: Sequence[bool], coefficients: Sequence[float], /
) -> "tuple[list[Tensor], list[Tensor], Tensor]":
    """Several element-wise penalties of one array, in one sweep; see `ElementwiseKernel`."""
    import torch

    shares = [1 / x.numel() if mean else 1.0 for mean in means]
    scales = [coefficient * share for coefficient, share in zip(coefficients, shares, strict=True)]
    deltas = list(dict.fromkeys(form.delta for form in forms if form.bent))
    # Of all terms together: the factor of each bent part, and of x itself.
    bends = [
        sum(form.bent * scale for form, scale in zip(forms, scales, strict=True) if form.bent and form.delta == delta)
        for delta in deltas
    ]
    straight = sum(form.straight * scale for form, scale in zip(forms, scales, strict=True))
    with torch.inference_mode(False), torch.no_grad():
        flat: Any = x.detach().reshape(-1)
        combined = torch.empty_like(flat)
        into: Any = combined
        sums: list[Tensor] = []
        for piece, total in zip(flat.split(_TILE), into.split(_TILE), strict=True):
            products = [dot(piece, piece)]
            # Not a product with 0: of an infinite element that is NaN.
            torch.mul(piece, straight, out=total) if straight else total.zero_()
            for delta, bend in zip(deltas, bends, strict=True):
                signs = piece.sign() if delta == 0.0 else (piece / delta).clamp_(-1.0, 1.0)
                products += [dot(signs, piece), dot(signs, signs)]
                total.add_(signs, alpha=bend)
            sums.append(torch.stack(products))
        squares, *bent = torch.stack(sums).sum(0)
        values: list[Tensor] = []
        norms: list[Tensor] = []
        for form, share in zip(forms, shares, strict=True):
            value = squared = torch.zeros_like(squares)
            if form.straight:
                value, squared = form.straight / 2 * squares, form.straight**2 * squares
            if form.bent:
                along, own = bent[2 * deltas.index(form.delta) :][:2]
                value = value + form.bent * (along - form.delta / 2 * own)
                squared = squared + form.bent**2 * own
                if form.straight:
                    squared = squared + 2 * form.bent * form.straight * along
            values.append(share * value)
            norms.append(share * (squared.sqrt() if in_range(squared) else _length(form, flat)))
    return values, norms, combined.reshape(x.shape)


def _length(form: Elementwise, x: "Tensor") -> "Tensor":
    """The norm of one penalty's gradient where the squares of its elements are out of range."""
    import torch

    # Not a product with 0: of an infinite element that is NaN.
    gradient = form.straight * x if form.straight else torch.zeros_like(x)
    if form.bent:
        gradient += form.bent * (x.sign() if form.delta == 0.0 else (x / form.delta).clamp_(-1.0, 1.0))
    return norm([gradient])
