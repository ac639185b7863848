"""The length of a gradient that a group of terms has formed together."""

from collections.abc import Sequence
from typing import Any

from . import triton_unavailable, unavailable

__all__ = ["length"]


def length(gradients: Sequence[Any]) -> Any:
    """That of these tensors as one vector; None where there is no kernel that measures it."""
    import torch

    for x in gradients:
        if (unavailable(x) or triton_unavailable(x)) is not None or not x.is_contiguous():
            return None
        if x.device != gradients[0].device or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return None
    if not gradients:
        return None
    from .triton.lengths import squared_length

    with torch.inference_mode(False), torch.no_grad():
        return torch.stack([squared_length(x) for x in gradients]).sum().sqrt().float()
