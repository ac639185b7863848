"""Fused evaluation of several terms at once.

A kernel sees facts about penalties, arrays and coefficients, and never a term. It returns the numbers of the reference
up to rounding. `PENALTIES_KERNELS=off` in the environment turns all of them off.
"""

import importlib.util
import os
import shutil
import sys
from typing import Any, Final

__all__ = ["circumstances", "triton_unavailable", "unavailable"]

_HAS_TRITON: Final = importlib.util.find_spec("triton") is not None
# As Triton, which reads it when it is imported.
_INTERPRETED: Final = _HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
_HAS_COMPILER: Final = any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")))
_WITHOUT_TRITON: Final = (
    "Triton is not installed"
    if not _HAS_TRITON
    else None
    if _HAS_COMPILER
    else "Triton needs a C compiler to start a kernel, and there is none: install gcc, or set CC"
)


def circumstances() -> tuple[bool, bool]:
    """Whether kernels are turned off, and whether a CUDA graph is captured: both may differ from call to call."""
    off = os.environ.get("PENALTIES_KERNELS", "").lower() == "off"
    torch = sys.modules.get("torch")
    # Wherever the inputs are: the first may be on the CPU, and others on a GPU.
    capturing = torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return off, capturing


def unavailable(x: Any) -> str | None:
    """Why there are no kernels at all for this array; None where there are."""
    if os.environ.get("PENALTIES_KERNELS", "").lower() == "off":
        return "PENALTIES_KERNELS=off"
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return "kernels are for PyTorch tensors"
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        return f"no kernel for a {type(x).__name__}"
    return None


def triton_unavailable(x: Any) -> str | None:
    """Why no Triton kernel runs where this tensor is; None where they do. The interpreter runs them on a CPU."""
    if x.is_cpu and _INTERPRETED:
        return None
    return _WITHOUT_TRITON if x.is_cuda else f"no kernel for {x.device.type} tensors"
