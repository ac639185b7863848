"""What composition needs of PyTorch tensors: gradients of several terms, their sum, and numbers to read."""

import builtins
import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...errors import FIRST_ORDER, GradientError
from ..precision import SCALES
from .arrays import add, default_dtype, tracing, transformed, upcast

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "accumulate",
    "add_weight_gradients",
    "as_array",
    "barred",
    "block",
    "captures",
    "detached",
    "device",
    "differentiable",
    "kind",
    "map_rows",
    "pullback",
    "read",
    "separate",
    "stitch",
    "sum_over_rows",
    "value_and_gradients",
    "weighted_sum",
    "zero",
    "zeros_like",
]


def device(x: "Tensor") -> Any:
    return x.device


def kind(x: "Tensor") -> Hashable:
    return type(x), x.dtype, x.shape, x.device, x.requires_grad, x.layout


def zero(like: "Tensor") -> "Tensor":
    import torch

    return torch.zeros((), dtype=default_dtype(), device=like.device)


def as_array(value: Any, like: "Tensor") -> "Tensor":
    import torch

    dtype = like.dtype if like.is_floating_point() else None
    return torch.as_tensor(value, dtype=dtype, device=like.device)


def differentiable(x: "Tensor", *, requested: bool) -> bool:
    return x.is_floating_point() if requested else x.requires_grad


def weighted_sum(values: Sequence["Tensor"], weights: Sequence[Any]) -> "Tensor":
    total = values[0] * weights[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        beside = value if value.device == total.device else value.to(total.device)
        # One operation where a product and a sum are two, there and back.
        number = isinstance(weight, int | float) and value.dtype == total.dtype
        total = total.add(beside, alpha=weight) if number else total + beside * weight
    return total


def read(arrays: Sequence["Tensor"]) -> list[Any]:
    import torch

    if all([x.is_cpu for x in arrays]):  # noqa: C419 (a generator takes twice as long)
        # Nothing moves: reading each in place takes a third of the time of stacking them.
        untyped: Sequence[Any] = arrays
        return [x.tolist() for x in untyped]
    # One transfer: .item() for each would wait for the device as many times.
    first = arrays[0].device
    wide = torch.float32 if first.type == "mps" else torch.float64
    flat: Any = torch.cat([x.detach().to(first, wide).reshape(-1) for x in arrays]).cpu()
    pieces = flat.split([x.numel() for x in arrays])
    return [piece.reshape(x.shape).tolist() for piece, x in zip(pieces, arrays, strict=True)]


def value_and_gradients(
    fn: Callable[[Sequence["Tensor"]], tuple["Tensor", list["Tensor"]]], leaves: Sequence["Tensor"]
) -> tuple["Tensor", list["Tensor"], list[Any]]:
    import torch

    if torch.compiler.is_compiling() or transformed():
        # Inside torch.compile and the transforms of torch.func only the functional form is allowed.
        pulled: Any = torch.func.vjp(lambda *xs: fn(xs), *leaves, has_aux=True)
        value, pull_back, arrays = pulled
        gradients = _in_range(leaves, lambda scale: pull_back(torch.full_like(value, scale)))
        return value, arrays, [g.detach() if torch.compiler.is_compiling() else g for g in gradients]
    with _recording():
        points = [_point(leaf) for leaf in leaves]
        value, arrays = fn(points)
        if not value.requires_grad:
            return value, arrays, [None] * len(points)
        half = builtins.any(point.element_size() < 4 for point in points)
        # What the function took from elsewhere, as a parameter in its closure, needs the graph again. Without such its
        # graph is freed at once, which at a million elements is a sixth of the time, and what reaches the inputs of
        # the value is the gradient that is known by then.
        keep = half or _captures(value, points)

        def pull(scale: float) -> Any:
            upstream = None if scale == 1.0 else torch.full_like(value, scale)
            return torch.autograd.grad(value, points, upstream, retain_graph=keep, allow_unused=True)

        gradients = _in_range(points, pull)
    return value if keep else value.detach(), arrays, gradients


def pullback(fn: Callable[["Tensor"], "Tensor"], x: "Tensor") -> tuple["Tensor", Callable[["Tensor"], "Tensor"]]:
    import torch

    with _recording():
        point = _point(x)
        value = fn(point)

    def pull(gradient: "Tensor") -> "Tensor":
        return torch.autograd.grad(value, point, gradient, retain_graph=True)[0]

    return value.detach(), pull


def _recording() -> contextlib.AbstractContextManager[Any]:
    """Where gradients can be taken, even if the caller has turned them off."""
    import torch

    if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
        return _HERE
    stack = contextlib.ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.enable_grad())
    return stack


_HERE: Final = contextlib.nullcontext()


def _in_range(points: Sequence["Tensor"], pull: Callable[[float], Sequence[Any]]) -> list[Any]:
    """The gradients from `pull(scale)`; where a point is float16, each element from the scale at which it fits."""
    import torch

    if not builtins.any(point.dtype is torch.float16 for point in points):
        return [_dense(gradient) for gradient in pull(1.0)]
    large, small = ([_divided_by(scale, _dense(gradient)) for gradient in pull(scale)] for scale in SCALES)
    return [a if a is None else torch.where(a.isfinite(), a, b) for a, b in zip(large, small, strict=True)]


def _dense(gradient: Any) -> Any:
    """A gradient whose elements can be added up: an embedding may return a sparse one."""
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _divided_by(scale: float, gradient: Any) -> Any:
    import torch

    if gradient is None:
        return None
    return (gradient.float() if gradient.dtype is torch.float16 else gradient) / scale


def _point(x: "Tensor") -> "Tensor":
    """`x` as a separate tensor: a graph that ends there is the function's alone."""
    if x.requires_grad:
        return x.view_as(x)
    return (x.clone() if x.is_inference() else x.detach()).requires_grad_()


def _captures(value: "Tensor", points: Sequence["Tensor"]) -> bool:
    """Whether the graph of a value leads to a leaf other than through the points."""
    leaves = {id(point) for point in points}
    return _leads_beyond(value, {point.grad_fn for point in points}, lambda leaf: id(leaf) in leaves)


def _leads_beyond(value: "Tensor", ends: set[Any], known: Callable[["Tensor"], bool]) -> bool:
    """Whether the graph of a value leads to an unknown leaf without passing one of the ends."""
    waiting: list[Any] = [value.grad_fn]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or node in ends:
            continue
        seen.add(node)
        if hasattr(node, "variable") and not known(node.variable):
            return True
        waiting += [follower for follower, _ in node.next_functions]
    return False


def captures(value: "Tensor", inputs: Sequence["Tensor"]) -> bool:
    if not value.requires_grad:
        return False
    # The points that a gradient is taken at share the memory of the inputs.
    ends = {x.grad_fn for x in inputs}
    memory = {x.untyped_storage().data_ptr() for x in inputs}
    return _leads_beyond(value, ends, lambda leaf: leaf.untyped_storage().data_ptr() in memory)


def detached(value: "Tensor") -> bool:
    import torch

    return not value.requires_grad and not torch.compiler.is_compiling() and not transformed()


def accumulate(total: Any, gradient: "Tensor", weight: Any, *, owned: bool) -> "Tensor":
    import torch

    # Half precision is added up in float32: small terms would vanish beside large ones.
    gradient = upcast("accumulate", gradient)
    if isinstance(weight, torch.Tensor):
        scaled = (gradient * weight.detach().to(gradient.device)).to(gradient.dtype)
        return scaled if total is None else total + scaled
    if total is None:
        return gradient if weight == 1.0 else gradient * weight
    # Never written to: a gradient from autograd may be an expanded number, or share its memory with another.
    return total.add_(gradient, alpha=weight) if owned else torch.add(total, gradient, alpha=weight)


def add_weight_gradients(
    gradients: Sequence[Any], leaves: Sequence["Tensor"], weighted: Sequence[tuple[Any, Any]]
) -> list[Any]:
    import torch

    sums = list(gradients)
    indices = [index for index, leaf in enumerate(leaves) if leaf.requires_grad]
    if not indices or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return sums
    share: Any = builtins.sum(value.detach() * weight for value, weight in weighted)
    found: Any = torch.autograd.grad(share, [leaves[i] for i in indices], retain_graph=True, allow_unused=True)
    for index, gradient in zip(indices, found, strict=True):
        if gradient is not None:
            sums[index] = gradient if sums[index] is None else sums[index] + gradient
    return sums


def zeros_like(x: "Tensor") -> "Tensor":
    import torch

    return torch.zeros_like(x, requires_grad=False)


def separate(gradients: Sequence[Any]) -> list[Any]:
    import torch

    if torch.compiler.is_compiling() or transformed():
        return list(gradients)
    # Autograd may give one number expanded, or one tensor for two inputs.
    seen: set[int] = set()
    apart: list[Any] = []
    for gradient in gradients:
        dense = gradient.contiguous()
        apart.append(dense.clone() if dense.data_ptr() in seen and dense.numel() else dense)
        seen.add(dense.data_ptr())
    return apart


def stitch(value: "Tensor", inputs: Sequence["Tensor"], gradients: Sequence["Tensor"]) -> "Tensor":
    plain, functional, _ = _stitch_functions()
    # The form that transforms need binds its arguments by their names at each call, which is half of its time.
    return (functional if tracing(value) else plain).apply(value, len(inputs), *inputs, *gradients)


def barred(value: "Tensor", inputs: Sequence["Tensor"], message: str) -> "Tensor":
    *_, once = _stitch_functions()
    return once.apply(message, value, *inputs)


def _scaled(upstream: "Tensor", gradient: "Tensor", like: "Tensor") -> "Tensor":
    """Their product in float32 at least: the scale of a loss in half precision is beyond what that can hold."""
    import torch

    if gradient.is_cuda and gradient.dtype == like.dtype and not (torch.is_grad_enabled() or tracing(gradient)):
        # Widened as it is read, and rounded as it is written: no copy in float32.
        factor = upstream.to(torch.promote_types(like.dtype, torch.float32)).reshape([1] * gradient.ndim)
        return torch.mul(gradient, factor, out=torch.empty_like(gradient))
    return (upstream * upcast("stitch", gradient)).to(like.dtype)


_stitch: Any = None


def _stitch_functions() -> Any:
    global _stitch
    if _stitch is not None:
        return _stitch
    import torch

    class Stitch(torch.autograd.Function):
        """A value that was computed elsewhere, with the gradient that came with it."""

        generate_vmap_rule = True

        @staticmethod
        def forward(value: Any, count: int, *tensors: Any) -> Any:
            return value.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.count = inputs[1]
            ctx.save_for_backward(*inputs[2:])

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            (upstream,) = grad_outputs
            try:
                saved = ctx.saved_tensors
            except RuntimeError as error:
                # PyTorch raises this class, too, where the graph was freed by an earlier backward.
                if "modified by an inplace operation" not in str(error):
                    raise
                raise GradientError(
                    "backward needs the gradient as it was computed, and out.gradient or an input was changed in place "
                    "since; change a copy (out.gradient.clone()), or wait until after the backward"
                ) from error
            inputs, gradients = saved[: ctx.count], saved[ctx.count :]
            returned = [_scaled(upstream, g, x) for x, g in zip(inputs, gradients, strict=True)]
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                once: Any = Once
                returned = [once.apply(FIRST_ORDER, g, *inputs) for g in returned]
            return upstream if ctx.needs_input_grad[0] else None, None, *returned, *([None] * ctx.count)

    class Once(torch.autograd.Function):
        """A gradient that came as numbers: differentiating it again would give 0, silently."""

        generate_vmap_rule = True

        @staticmethod
        def forward(message: str, gradient: Any, *inputs: Any) -> Any:
            return gradient.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.message = inputs[0]

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise GradientError(ctx.message)

    class Plain(torch.autograd.Function):
        """The same, in the older form."""

        @staticmethod
        def forward(ctx: Any, value: Any, count: int, *tensors: Any) -> Any:
            Stitch.setup_context(ctx, (value, count, *tensors), value)
            return value.clone()

        backward = Stitch.backward

    _stitch = Plain, Stitch, Once
    return _stitch


def block(like: "Tensor") -> int:
    # 32 MB of float32 on a CPU; on a GPU three quarters of a gigabyte of bfloat16, nearly 3000 rows of a large
    # vocabulary: each block adds to the gradient of the whole output layer, which takes as long as a product of 1000.
    return 11 * 2**25 if like.is_cuda else 2**23


def map_rows(fn: Callable[..., "Tensor"], arrays: Sequence["Tensor"], size: int) -> "Tensor":
    import torch

    return torch.cat(_of_pieces(fn, arrays, size))


def sum_over_rows(fn: Callable[..., "Tensor"], arrays: Sequence["Tensor"], size: int) -> "Tensor":
    return add(_of_pieces(fn, arrays, size))


def _of_pieces(fn: Callable[..., "Tensor"], arrays: Sequence["Tensor"], size: int) -> "list[Tensor]":
    import torch
    from torch.utils import checkpoint

    # Checkpointed: a piece keeps nothing but its rows, and is computed again when its gradient is due. Split, not
    # sliced: the backward of each slice would write a whole array.
    module: Any = checkpoint
    again = module.checkpoint
    # The compiler decides itself what to compute again, and torch.func knows no checkpoints.
    keep = torch.is_grad_enabled() and not torch.compiler.is_compiling() and not transformed()
    untyped: Sequence[Any] = arrays
    pieces = zip(*[x.split(size) for x in untyped], strict=True)
    return [again(fn, *piece, use_reentrant=False) if keep else fn(*piece) for piece in pieces]
