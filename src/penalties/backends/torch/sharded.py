"""Tensors that are spread over processes: DTensors, as the parameters of a model under FSDP2 are.

Their operations mean the whole tensor. A number that comes of one may still be a sum that each process has a part of,
and is an ordinary tensor once it is `whole`.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["is_sharded", "placed", "whole"]


def is_sharded(x: object) -> bool:
    """Whether this is a DTensor; there is none before its module is loaded, which takes a second."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def whole(x: "Tensor") -> "Tensor":
    """The same as an ordinary tensor, dense and on each process; differentiable. Every process must come here."""
    spread: Any = x
    if is_sharded(x):
        return spread.full_tensor()
    return x.to_dense() if x.is_sparse else x


def placed(x: "Tensor", like: "Tensor") -> "Tensor":
    """`x`, spread over processes as `like` is, so that it can change that in place; `x` may have size 1 along axes."""
    spread: Any = x
    if not is_sharded(x):
        return x
    module: Any = sys.modules["torch.distributed.tensor"]
    target: Any = like
    placements = [
        one if isinstance(one, module.Shard) and x.shape[one.dim] == like.shape[one.dim] else module.Replicate()
        for one in target.placements
    ]
    return spread.redistribute(placements=placements)
