"""Array operations on PyTorch tensors."""

import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...errors import BackendError, GradientError, not_whole
from .sharded import is_sharded, whole

if TYPE_CHECKING:
    import numpy as np
    from torch import Generator, Tensor

__all__ = [
    "GENERATOR",
    "LIBRARY",
    "abs",
    "add",
    "amax",
    "any",
    "arange",
    "at_hand",
    "cast",
    "choice",
    "clip",
    "concatenate",
    "constant",
    "cos",
    "draws",
    "exp",
    "expm1",
    "eye",
    "indices",
    "limits",
    "log",
    "log_softmax",
    "matmul",
    "mean",
    "moveaxis",
    "packs",
    "power_iteration",
    "smooth_abs",
    "sqrt",
    "square",
    "stop_gradient",
    "subtract_where",
    "sum",
    "svdvals",
    "take",
    "take_along",
    "tracing",
    "uniform",
    "upcast",
    "value_and_gradient",
    "where",
    "whole",
    "xlogx",
]

LIBRARY: Final = "PyTorch"
GENERATOR: Final = "a torch.Generator"

# smooth_l1_loss divides the square of an element by delta: between these the square is in range where the result is.
_SQUARES: Final = (1e-12, 1e12)

# Packing copies every element twice (there and back) and saves about 20 µs of dispatch per leaf: on a CPU the two meet
# at about this mean leaf size, and earlier where the copy needs fresh pages. A GPU copies some hundred times faster.
_PACK_BELOW: Final = 8192
_PACK_AT_MOST: Final = 2**18
_PACK_BELOW_ON_ACCELERATOR: Final = 2**20


def upcast(function: str, x: "Tensor") -> "Tensor":
    if x.is_floating_point():
        return x if x.element_size() >= 4 else x.float()
    if x.is_complex():
        raise BackendError(f"{function}: a tensor has dtype {x.dtype}; expected real numbers")
    return x.to(default_dtype())


def default_dtype() -> Any:
    """The dtype of numbers without one: torch's default, in at least 32 bits."""
    import torch

    default = torch.get_default_dtype()
    return default if default.itemsize >= 4 else torch.float32


def cast(x: "Tensor", like: "Tensor") -> "Tensor":
    return x.to(like)


def constant(values: "np.ndarray[Any, Any]", like: "Tensor") -> "Tensor":
    import torch

    return torch.as_tensor(values, dtype=like.dtype if values.dtype.kind == "f" else None, device=like.device)


def arange(size: int, like: "Tensor") -> "Tensor":
    import torch

    return torch.arange(size, dtype=like.dtype, device=like.device)


def eye(size: int, like: "Tensor") -> "Tensor":
    import torch

    return torch.eye(size, dtype=like.dtype, device=like.device)


def packs(leaves: Sequence["Tensor"]) -> bool:
    import torch

    device, count = leaves[0].device, len(leaves)
    size = builtins.sum(map(torch.Tensor.numel, leaves))
    if builtins.any(map(is_sharded, leaves)):
        return False
    if device.type != "cpu":
        return size <= _PACK_BELOW_ON_ACCELERATOR * count and all(leaf.device == device for leaf in leaves)
    # Comparing devices takes three times as long as asking for the CPU.
    return size <= min(_PACK_BELOW * count, _PACK_AT_MOST) and all(leaf.is_cpu for leaf in leaves)


def concatenate(leaves: Sequence["Tensor"]) -> "Tensor":
    import torch

    # A view of a tensor that is flat already would cost a node of the graph each, there and back.
    return torch.cat([leaf if leaf.ndim == 1 else leaf.reshape(-1) for leaf in leaves])


def add(scalars: Sequence["Tensor"]) -> "Tensor":
    total = scalars[0]
    for scalar in scalars[1:]:
        total = total + scalar.to(total.device)
    return total


def abs(x: "Tensor") -> "Tensor":
    return x.abs()


def square(x: "Tensor") -> "Tensor":
    # Not x.square(): its backward builds 2x by a power.
    return x * x


def smooth_abs(x: "Tensor", delta: float, reduction: str) -> "Tensor":
    import torch

    if reduction == "mean" and not x.numel():
        return x.sum()
    if not _SQUARES[0] < delta < _SQUARES[1]:
        size = x.abs()
        near = size < delta
        inside = where(near, x, 0.0)
        values = (inside / delta) * (inside / 2) + where(near, 0.0, size - delta / 2)
        return values if reduction == "none" else whole(values.sum() if reduction == "sum" else values.mean())
    # Reduced by the operation itself: a mean after the fact takes twice as long at a million elements.
    reduced = torch.nn.functional.smooth_l1_loss(x, torch.zeros_like(x), reduction=reduction, beta=delta)
    return reduced if reduction == "none" else whole(reduced)


def exp(x: "Tensor") -> "Tensor":
    return x.exp()


def expm1(x: "Tensor") -> "Tensor":
    return x.expm1()


def log(x: "Tensor") -> "Tensor":
    return x.log()


def xlogx(x: "Tensor", offset: float) -> "Tensor":
    return x * (where(x > 0, x, 1.0).log() + offset)


def cos(x: "Tensor") -> "Tensor":
    return x.cos()


def sqrt(x: "Tensor") -> "Tensor":
    return x.sqrt()


def clip(x: "Tensor", low: float | None, high: float | None) -> "Tensor":
    return x.clamp(low, high)


def where(condition: "Tensor", yes: Any, no: Any) -> "Tensor":
    import torch

    return torch.where(condition, yes, no)


def subtract_where(condition: "Tensor", a: "Tensor", b: "Tensor") -> "Tensor":
    # One mask for both: −inf − (−inf) is NaN for a moment, but the backward of a difference never reads it.
    return where(condition, a - b, 0.0)


def limits(x: "Tensor") -> tuple[float, float]:
    import torch

    info = torch.finfo(x.dtype)
    return info.tiny, info.max


def sum(x: "Tensor", axis: int | None = None, *, keepdims: bool = False) -> "Tensor":
    return whole(x.sum()) if axis is None else x.sum(axis, keepdim=keepdims)


def mean(x: "Tensor") -> "Tensor":
    # Not x.mean(): its backward writes out a whole array where that of a sum expands one number.
    return whole(x.sum()) / (x.numel() or 1)


def amax(x: "Tensor", axis: int | None = None, *, keepdims: bool = False) -> "Tensor":
    return whole(x.amax()) if axis is None else x.amax(axis, keepdim=keepdims)


def any(x: "Tensor") -> "Tensor":
    return x.any(-1)


def log_softmax(x: "Tensor") -> "Tensor":
    return x.log_softmax(-1)


def take_along(x: "Tensor", indices: "Tensor") -> "Tensor":
    return x.gather(-1, indices)


def indices(function: str, name: str, x: "Tensor") -> "Tensor":
    import torch

    if x.is_floating_point() or x.is_complex() or x.dtype is torch.bool:
        raise not_whole(function, name, x)
    return x.long()


def at_hand(x: "Tensor") -> bool:
    import torch

    return type(x) is torch.Tensor and x.is_cpu and not tracing(x)


def matmul(a: "Tensor", b: "Tensor") -> "Tensor":
    import torch

    if not torch.is_autocast_enabled(a.device.type):
        return a @ b
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def moveaxis(x: "Tensor", source: int, to: int) -> "Tensor":
    return x.movedim(source, to)


def svdvals(x: "Tensor") -> "Tensor":
    import torch

    linalg: Any = torch.linalg  # untyped in torch
    return linalg.svdvals(x)


def take(x: "Tensor", rows: "Tensor") -> "Tensor":
    return x[rows]


def stop_gradient(x: "Tensor") -> "Tensor":
    return x.detach()


def power_iteration(matrix: "Tensor", start: "Tensor", times: int) -> "Tensor":
    vector = start
    for _ in range(times):
        vector = matmul(matrix, matmul(matrix, vector))
        largest = amax(abs(vector))
        vector = vector / where(largest > 0, largest, 1.0)
    return vector


def draws(seed: object) -> bool:
    import torch

    return isinstance(seed, torch.Generator)


def uniform(seed: "Generator", count: int, like: "Tensor") -> "Tensor":
    import torch

    return torch.rand(count, generator=seed, dtype=like.dtype, device=seed.device).to(like.device)


def choice(seed: "Generator", total: int, count: int, like: "Tensor") -> "Tensor":
    import torch

    return torch.randperm(total, generator=seed, device=seed.device)[:count].to(like.device)


def value_and_gradient(function: str, fn: Callable[["Tensor"], "Tensor"], x: "Tensor") -> tuple["Tensor", "Tensor"]:
    import torch

    if torch.compiler.is_compiling() or transformed():
        # Inside torch.compile and the transforms of torch.func only the functional form is allowed.
        pulled: Any = torch.func.vjp(fn, x)
        value, pull_back = pulled
        return value, pull_back(torch.ones_like(value))[0]
    # Elsewhere the plain form: it lets the network change its buffers, as BatchNorm does while training.
    recorded = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        point = x.clone() if x.is_inference() else x
        point = point if point.requires_grad else point.detach().requires_grad_()
        value = fn(point)
        gradient = None
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(
                value, point, torch.ones_like(value), create_graph=True, allow_unused=True
            )
    if gradient is None:
        raise GradientError(
            f"{function}: the output of fn does not depend on x by operations that PyTorch can differentiate; "
            "look for .detach(), torch.no_grad() or a conversion to NumPy inside fn"
        )
    return (value, gradient) if recorded else (value.detach(), gradient.detach())


def transformed() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp, …) is running: `requires_grad_` raises in each of them."""
    global _probe
    import torch

    probe = torch.empty(0, device="cpu") if _probe is None else _probe
    try:
        probe.requires_grad_(False)
    except RuntimeError:
        return True
    _probe = probe  # Kept only here: one that was made inside a transform belongs to it.
    return False


_probe: Any = None


def tracing(x: object) -> bool:
    import torch

    return torch.compiler.is_compiling() or transformed()
