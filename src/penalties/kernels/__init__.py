"""Fused evaluation of several terms at once.

A kernel sees facts about penalties, arrays and coefficients, and never a term. It returns the numbers of the reference
up to rounding. `PENALTIES_KERNELS=off` in the environment turns all of them off.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from ..functional.penalty import Elementwise
from . import cpu

__all__ = ["ElementwiseKernel", "elementwise_kernel"]


class ElementwiseKernel(Protocol):
    """Computes several element-wise penalties of one array in one sweep."""

    def __call__(
        self, x: Any, forms: Sequence[Elementwise], means: Sequence[bool], coefficients: Sequence[float], /
    ) -> tuple[list[Any], list[Any], Any]:
        """The value of each, the norm of each one's unscaled gradient, and `Σ coefficient·gradient`."""
        ...


def elementwise_kernel(x: Any) -> ElementwiseKernel | str:
    """The kernel for element-wise penalties of this array, or why there is none."""
    if os.environ.get("PENALTIES_KERNELS", "").lower() == "off":
        return "by itself: PENALTIES_KERNELS=off"
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return "by itself: kernels are for PyTorch tensors"
    reason = cpu.unsupported(x)
    return cpu.elementwise if reason is None else f"by itself: {reason}"
