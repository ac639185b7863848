"""Launching where the tensors are."""

import contextlib
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["on"]

_HERE: Final = contextlib.nullcontext()


def on(x: "Tensor") -> contextlib.AbstractContextManager[Any]:
    """The device of a tensor: Triton launches on the current one."""
    return _HERE if not x.is_cuda or x.device.index == torch.cuda.current_device() else torch.cuda.device(x.device)
