"""Norms of weights and gradients, over some axes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ....backends.torch.sharded import placed

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["norms"]


def norms(tensor: "Tensor", axes: Sequence[int] | None) -> "Tensor":
    """The norm over these axes, which stay with length 1, or over all; of half precision in float32."""
    import torch

    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
    lengths = cast("Any", torch.linalg).vector_norm(tensor, dim=axes, keepdim=True, dtype=wide)
    return placed(lengths, tensor)
