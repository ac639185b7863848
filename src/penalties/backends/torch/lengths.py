"""Lengths and inner products of PyTorch tensors, of whatever size their elements are."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from .arrays import matmul, tracing, upcast
from .sharded import is_sharded, whole

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["gram", "norm"]

_ROW: Final = 512
"""Elements of one dot product: of many more, a sum in float32 loses digits."""

_SMALL: Final = 2**16
"""Up to here a copy costs less than further operations; beyond, arrays are large, and memory counts."""

_PIECE: Final = 2**25
"""Elements of which there may be a copy on a GPU, which adds up so many in float32 to all its digits."""


def norm(gradients: Sequence["Tensor"]) -> "Tensor":
    import torch

    norms = [_length(gradient) for gradient in gradients]
    return norms[0] if len(norms) == 1 else _length(torch.stack([one.to(norms[0].device) for one in norms]))


def _length(x: "Tensor") -> "Tensor":
    """The length of a tensor, of whatever size its elements are: their squares may be out of range."""
    import torch

    linalg: Any = torch.linalg  # untyped in torch
    if x.is_cuda and x.numel() > _SMALL and x.is_floating_point() and not (is_sharded(x) or tracing(x)):
        return _length_of_many(x.reshape(-1))
    x = upcast("norm", x)
    if is_sharded(x):
        return whole(x.double().square().sum()).sqrt().to(x.dtype)
    if x.device.type == "mps":
        return linalg.vector_norm(x)
    small = x.dtype is torch.float32 and x.numel() <= _SMALL
    if small or not x.is_cpu or tracing(x):
        # The squares of float32 are in the range of float64, and their sum has all its digits.
        return linalg.vector_norm(x, dtype=torch.float64).to(x.dtype)
    flat = x.reshape(-1)
    squares = dot(flat, flat)
    if in_range(squares):
        return squares.sqrt()
    largest = flat.detach().abs().max() if flat.numel() else squares
    if not 0.0 < float(largest) < math.inf:
        return largest
    flat = flat / largest
    return largest * dot(flat, flat).sqrt()


def _length_of_many(x: "Tensor") -> "Tensor":
    """The length of a flat tensor on a GPU, where a copy in float64 would take several times its memory."""
    import torch

    linalg: Any = torch.linalg
    # Half precision is widened as it is read. The squares of float16 are in range.
    wide = torch.promote_types(x.dtype, torch.float32)
    scale = None if x.dtype is torch.float16 else _power_of_two([x])
    untyped: Any = x  # split is untyped in torch
    lengths = [linalg.vector_norm(_divided(piece, scale), dtype=wide) for piece in untyped.split(_PIECE)]
    whole_length = linalg.vector_norm(torch.stack(lengths), dtype=torch.float64).to(wide)
    return whole_length if scale is None else whole_length * scale.to(wide)


def dot(x: "Tensor", y: "Tensor") -> "Tensor":
    """The inner product of two flat tensors on a CPU, to nearly all digits of their dtype."""
    import torch

    if x.numel() <= _SMALL:
        return (x * y).sum()
    linalg: Any = torch.linalg
    whole = x.numel() // _ROW * _ROW
    rows = linalg.vecdot(x[:whole].reshape(-1, _ROW), y[:whole].reshape(-1, _ROW)).sum()
    return rows + x[whole:].dot(y[whole:])


def in_range(squares: "Tensor") -> bool:
    """Whether a sum of squares on a CPU has neither overflowed nor lost digits at the lower end of its dtype."""
    import torch

    info = torch.finfo(squares.dtype)
    return info.tiny / info.eps**2 < float(squares.detach()) < math.inf


def gram(rows: Sequence[Sequence[Any]]) -> tuple["Tensor", "Tensor"]:
    import torch

    count = len(rows)
    wide = [[None if x is None else _flat(upcast("gram", x)) for x in row] for row in rows]
    scales = [_power_of_two([x for x in row if x is not None]) for row in wide]
    total: Any = None
    for column in zip(*wide, strict=True):
        present = [x for x in column if x is not None]
        if not present:
            continue
        flat = [_divided(x, scale) for x, scale in zip(column, scales, strict=True)]
        if present[0].numel() <= _SMALL and not is_sharded(present[0]):
            blank = torch.zeros_like(present[0])
            stacked = torch.stack([blank if x is None else x for x in flat])
            products = matmul(stacked, stacked.T)
        else:
            # Pair by pair: no copy of what may be large.
            nothing = torch.zeros((), dtype=present[0].dtype, device=present[0].device)
            pairs = {(i, j): _product(flat[i], flat[j], nothing) for i in range(count) for j in range(i, count)}
            every = [pairs[min(i, j), max(i, j)] for i in range(count) for j in range(count)]
            products = torch.stack(every).reshape(count, count)
        total = products if total is None else total + products.to(total.device)
    if total is None:
        return torch.zeros(count, count), torch.ones(count)
    return total, torch.stack([torch.ones_like(total[0, 0]) if s is None else s.to(total) for s in scales])


def _flat(x: "Tensor") -> "Tensor":
    # Shards of unequal size cannot be flattened.
    return x if is_sharded(x) else x.reshape(-1)


def _power_of_two(row: Sequence["Tensor"]) -> Any:
    """One near the largest element of some flat tensors; None where their products are in range as they are."""
    import torch

    linalg: Any = torch.linalg  # untyped in torch
    sizes = [whole(linalg.vector_norm(x.detach(), math.inf)) for x in row if x.numel()]
    if not sizes:
        return None
    largest: Any = torch.stack([size.to(sizes[0]) for size in sizes]).amax()
    if largest.is_cpu and not tracing(largest) and 2.0**-40 < float(largest) < 2.0**40:
        return None
    usable = (largest > 0) & (largest < math.inf)
    tiny = torch.finfo(largest.dtype).tiny
    return torch.where(usable, largest, 1.0).log2().floor().exp2().clamp(tiny, 1 / tiny)


def _divided(x: "Tensor | None", scale: Any) -> "Tensor | None":
    return x if x is None or scale is None else x / scale.to(x)


def _product(a: "Tensor | None", b: "Tensor | None", nothing: "Tensor") -> "Tensor":
    if a is None or b is None:
        return nothing
    if is_sharded(a):
        return whole((a * b).sum())
    return dot(a, b) if a.is_cpu else a.dot(b)
