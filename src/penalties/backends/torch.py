"""The operations on PyTorch tensors.

Nothing here imports torch at module level: these functions only ever see tensors, so torch is loaded by then.
"""

import builtins
import importlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import FIRST_ORDER, BackendError, GradientError
from .protocol import Slope

if TYPE_CHECKING:
    import numpy as np
    from torch import Generator, Tensor

__all__ = [
    "GENERATOR",
    "LIBRARY",
    "abs",
    "accumulate",
    "add",
    "add_gradients",
    "amax",
    "any",
    "arange",
    "as_array",
    "captures",
    "cast",
    "choice",
    "clip",
    "concatenate",
    "constant",
    "cos",
    "device",
    "differentiable",
    "draws",
    "exp",
    "expm1",
    "eye",
    "gram",
    "log",
    "log_softmax",
    "log_tiny",
    "loose",
    "matmul",
    "mean",
    "moveaxis",
    "norm",
    "packs",
    "power_iteration",
    "read",
    "separate",
    "settled",
    "smooth_abs",
    "sqrt",
    "square",
    "stitch",
    "stop_gradient",
    "subtract_where",
    "sum",
    "sum_over_rows",
    "svdvals",
    "take",
    "tracing",
    "uniform",
    "upcast",
    "value_and_gradient",
    "value_and_gradients",
    "weighted_sum",
    "where",
    "zero",
    "zeros_like",
]

LIBRARY: Final = "PyTorch"
GENERATOR: Final = "a torch.Generator"

# Packing copies every element twice (there and back) and saves about 20 µs of dispatch per leaf: on a CPU the two meet
# at about this mean leaf size, and earlier where the copy needs fresh pages. A GPU copies some hundred times faster.
_PACK_BELOW: Final = 8192
_PACK_AT_MOST: Final = 2**18
_PACK_BELOW_ON_ACCELERATOR: Final = 2**20

# Norms of more elements than this are taken by products of so many.
_LONG: Final = 2**14
_PRODUCT: Final = 2**16

# One product of stacked vectors up to here, a dot product for each pair beyond.
_GRAM_BELOW: Final = 2**16

# Elements that stay in the cache of a core from a term's forward to the sum of gradients: at a million float32, five
# terms take two thirds of the time that they take whole. Smaller pieces cost more in calls than they save.
_TILE: Final = 200_000

_ATEN_REDUCTIONS: Final = {"none": 0, "mean": 1, "sum": 2}


def upcast(function: str, x: "Tensor") -> "Tensor":
    if x.is_floating_point():
        return x if x.element_size() >= 4 else x.float()
    if x.is_complex():
        raise BackendError(f"{function}: a tensor has dtype {x.dtype}; expected real numbers")
    import torch

    return x.to(torch.get_default_dtype())


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
    if device.type != "cpu":
        return size <= _PACK_BELOW_ON_ACCELERATOR * count and all(leaf.device == device for leaf in leaves)
    # Comparing devices takes three times as long as asking for the CPU.
    return size <= min(_PACK_BELOW * count, _PACK_AT_MOST) and all(leaf.is_cpu for leaf in leaves)


def concatenate(leaves: Sequence["Tensor"]) -> "Tensor":
    import torch

    if leaves[0].ndim == leaves[-1].ndim == 1 and not torch.compiler.is_compiling():
        # Flat already, as sequences mostly are: asking each of 64 tensors takes 4 µs, and cat raises where one is not.
        try:
            flat = torch.cat(list(leaves))
        except RuntimeError:
            pass
        else:
            return flat if flat.ndim == 1 else flat.reshape(-1)
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
    # What torch.nn.functional calls, without its checks (7 µs); torch.ops takes 5 µs more. Reduced by the operation
    # itself: a mean after the fact takes twice as long at a million elements.
    library: Any = torch
    return library._C._nn.smooth_l1_loss(x, torch.zeros_like(x), _ATEN_REDUCTIONS[reduction], delta)


def exp(x: "Tensor") -> "Tensor":
    return x.exp()


def expm1(x: "Tensor") -> "Tensor":
    return x.expm1()


def log(x: "Tensor") -> "Tensor":
    return x.log()


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


def log_tiny(x: "Tensor") -> float:
    import torch

    return math.log(4) + math.log(torch.finfo(x.dtype).tiny)


def sum(x: "Tensor", axis: int | None = None, *, keepdims: bool = False) -> "Tensor":
    return x.sum() if axis is None else x.sum(axis, keepdim=keepdims)


def mean(x: "Tensor") -> "Tensor":
    import torch

    # Not x.mean(): its backward writes out a whole array where that of a sum expands one number.
    total, count = x.sum(), x.numel() or 1
    if type(total) is torch.Tensor and not torch.compiler.is_compiling():
        # Dividing by a tensor takes 3 µs less, there and back, than by a number of Python's.
        return total.div(torch.scalar_tensor(count, dtype=total.dtype, device="cpu"))
    return total.div(count)


def amax(x: "Tensor", axis: int | None = None, *, keepdims: bool = False) -> "Tensor":
    return x.amax() if axis is None else x.amax(axis, keepdim=keepdims)


def any(x: "Tensor") -> "Tensor":
    return x.any(-1)


def log_softmax(x: "Tensor") -> "Tensor":
    return x.log_softmax(-1)


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

    if torch.compiler.is_compiling() or _transformed():
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


def _transformed() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp, ...) is running; torch has no public way to ask."""
    global _functorch
    if _functorch is None:
        _functorch = importlib.import_module("torch._C._functorch")
    return _functorch.maybe_current_level() is not None


_functorch: Any = None


# What composition needs: gradients of several terms, their sum, and numbers for people.


def tracing(x: object) -> bool:
    import torch

    return torch.compiler.is_compiling() or _transformed()


def settled(value: "Tensor", like: "Tensor") -> bool:
    if value.ndim or not value.is_floating_point() or value.element_size() < 4:
        return False
    return (value.is_cpu and like.is_cpu) or value.device == like.device


def device(x: "Tensor") -> Any:
    return x.device


def zero(like: "Tensor") -> "Tensor":
    import torch

    return torch.zeros((), device=like.device)


def as_array(value: Any, like: "Tensor") -> "Tensor":
    import torch

    dtype = like.dtype if like.is_floating_point() else None
    return torch.as_tensor(value, dtype=dtype, device=like.device)


def differentiable(x: "Tensor", *, asked: bool) -> bool:
    return x.is_floating_point() if asked else x.requires_grad


def weighted_sum(values: Sequence["Tensor"], weights: Sequence[Any]) -> "Tensor":
    first = values[0]
    if len(values) == 1:
        return first * weights[0]
    import torch

    if type(first) is torch.Tensor and not torch.compiler.is_compiling():
        vector = _vector(tuple(weights), first)
        if vector is not None:
            # One dot product: two nodes of the graph, where products and sums are two for each term.
            try:
                return torch.stack(list(values)).dot(vector)
            except RuntimeError:
                # On several devices, or of several dtypes.
                pass
    total = first * weights[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total + (value * weight).to(total.device)
    return total


# Weights as vectors, so that a call need not copy them to the device again.
_vectors: dict[tuple[tuple[float, ...], Any, Any], Any] = {}
_VECTORS_KEPT: Final = 256


def _vector(weights: tuple[Any, ...], like: "Tensor") -> "Tensor | None":
    """The weights as a vector beside `like`; None where one of them is an array."""
    import torch

    key = weights, like.dtype, like.device
    vector = _vectors.get(key)
    if vector is None:
        if not all(isinstance(weight, int | float) for weight in weights):
            return None
        with torch.inference_mode(False):
            vector = torch.tensor(weights, dtype=like.dtype, device=like.device)
        if not _transformed():
            # One that was made inside a transform belongs to it.
            if len(_vectors) >= _VECTORS_KEPT:
                _vectors.clear()
            _vectors[key] = vector
    return vector


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
    fn: Callable[[Sequence["Tensor"]], tuple["Tensor", list["Tensor"]]], leaves: Sequence["Tensor"], scale: float
) -> tuple["Tensor", list["Tensor"], list[Any]]:
    import torch

    if torch.compiler.is_compiling() or _transformed():
        # Inside torch.compile and the transforms of torch.func only the functional form is allowed.
        pulled: Any = torch.func.vjp(lambda *xs: fn(xs), *leaves, has_aux=True)
        value, pull_back, arrays = pulled
        gradients = pull_back(torch.full_like(value, scale))
        return value, arrays, [g.detach() if torch.compiler.is_compiling() else g for g in gradients]
    if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
        return _value_and_gradients(fn, leaves, scale)
    with torch.inference_mode(False), torch.enable_grad():
        return _value_and_gradients(fn, leaves, scale)


def _value_and_gradients(
    fn: Callable[[Sequence["Tensor"]], tuple["Tensor", list["Tensor"]]], leaves: Sequence["Tensor"], scale: float
) -> tuple["Tensor", list["Tensor"], list[Any]]:
    import torch

    points = [_point(leaf) for leaf in leaves]
    value, arrays = fn(points)
    if not value.requires_grad:
        return value, arrays, [None] * len(leaves)
    upstream = None if scale == 1.0 else torch.full_like(value, scale)
    # What the function took from elsewhere, as a parameter in its closure, needs the graph again. Without such its
    # graph is freed at once, which at a million elements is a sixth of the time, and what reaches the inputs of the
    # value is the gradient that is known by then.
    keep = _captures(value, points) or builtins.any(leaf.element_size() < 4 for leaf in leaves)
    gradients = torch.autograd.grad(value, points, upstream, retain_graph=keep, allow_unused=True)
    return value if keep else value.detach(), arrays, list(gradients)


def _point(x: "Tensor") -> "Tensor":
    """`x` as a tensor of its own: a graph that ends there is the function's alone."""
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


def loose(value: "Tensor") -> bool:
    import torch

    return not value.requires_grad and not torch.compiler.is_compiling() and not _transformed()


def accumulate(total: Any, gradient: "Tensor", weight: Any, *, owned: bool) -> "Tensor":
    import torch

    if isinstance(weight, torch.Tensor):
        scaled = (upcast("accumulate", gradient) * weight.detach().to(gradient.device)).to(gradient.dtype)
        return scaled if total is None else total + scaled
    if total is None:
        return gradient if weight == 1.0 else gradient * weight
    # A gradient that autograd gave may be one number expanded, or share its memory with another: never written to.
    return total.add_(gradient, alpha=weight) if owned else torch.add(total, gradient, alpha=weight)


def add_gradients(
    fn: Callable[..., "Tensor"],
    arrays: Sequence["Tensor"],
    wanted: Sequence[int],
    *,
    scale: float,
    mean: bool,
    sum_at: Callable[[int], "Tensor"],
    weight: float,
    slope: Slope | None,
) -> tuple["Tensor", list["Tensor"]] | None:
    import torch

    rows = _tile(arrays, wanted)
    if rows is None:
        return None
    if slope is not None:
        x: Any = arrays[0].detach()
        total: Any = sum_at(0)
        share = 1 / x.numel() if mean else 1.0
        with torch.inference_mode(False), torch.no_grad():
            return _add_slopes(x.split(rows), slope, total.split(rows), share, scale * weight)
    values: list[Tensor] = []
    lengths: list[list[Tensor]] = [[] for _ in wanted]
    untyped: Sequence[Any] = arrays
    sums: Sequence[Any] = [sum_at(place) for place in wanted]
    # Every frame counts here: a piece takes a fifth of a millisecond.
    with torch.inference_mode(False), torch.enable_grad():
        pieces = zip(*[x.detach().split(rows) for x in untyped], strict=True)
        for piece, *into in zip(pieces, *[total.split(rows) for total in sums], strict=True):
            points = [piece[place].requires_grad_() for place in wanted]
            value = fn(*piece)
            if mean:
                value = value * (len(piece[0]) / len(arrays[0]))
            upstream = None if scale == 1.0 else torch.full_like(value, scale)
            gradients = torch.autograd.grad(value, points, upstream)
            values.append(value.detach())
            for gradient, total, found in zip(gradients, into, lengths, strict=True):
                found.append(_length(gradient))
                total.add_(gradient, alpha=weight)
    return torch.stack(values).sum(), [norm(found) / scale for found in lengths]


def _add_slopes(
    pieces: Sequence[Any], slope: Slope, totals: Sequence[Any], share: float, weight: float
) -> tuple["Tensor", list["Tensor"]]:
    """The value and the norm of a gradient that is known, with that added: no graph, and no more passes than needed."""
    import torch

    bent, straight, delta = slope
    found: list[Tensor] = []
    for piece, total in zip(pieces, totals, strict=True):
        products: list[Any] = []
        if bent:
            signs = piece.sign() if delta == 0.0 else (piece / delta).clamp_(-1.0, 1.0)
            products += [_product(signs, piece), _product(signs, signs)]
            total.add_(signs, alpha=bent * share * weight)
        if straight:
            products.append(_product(piece, piece))
            total.add_(piece, alpha=straight * share * weight)
        found.append(torch.stack(products))
    sums = torch.stack(found).sum(0)
    value = squared = sums.new_zeros(())
    if bent:
        value = bent * (sums[0] - delta / 2 * sums[1])
        squared = bent**2 * sums[1]
    if straight:
        value = value + straight / 2 * sums[-1]
        squared = squared + straight**2 * sums[-1]
    if bent and straight:
        squared = squared + 2 * bent * straight * sums[0]
    return share * value, [share * squared.sqrt()]


def _product(x: Any, y: Any) -> Any:
    """The inner product, in pieces: the CPU adds one after another, and of many in float32 loses digits."""
    import torch

    pairs = zip(x.reshape(-1).split(_PRODUCT), y.reshape(-1).split(_PRODUCT), strict=True)
    return torch.stack([one.dot(other) for one, other in pairs]).sum()


def _tile(arrays: Sequence["Tensor"], wanted: Sequence[int]) -> int | None:
    """Rows to take at a time, or None where all at once is as well."""
    import torch

    first = arrays[0]
    count = round(first.numel() / _TILE)
    if count < 2 or len(first) < count or tracing(first):
        return None
    for place, x in enumerate(arrays):
        # Half precision is scaled as a whole, and what else requires a gradient needs the graph.
        if not x.is_cpu or x.layout is not torch.strided or not x.is_floating_point() or x.element_size() < 4:
            return None
        if x.requires_grad and place not in wanted:
            return None
    return -(-len(first) // count)


def zeros_like(x: "Tensor") -> "Tensor":
    import torch

    return torch.zeros_like(x, requires_grad=False)


def separate(gradients: Sequence[Any]) -> list[Any]:
    import torch

    if torch.compiler.is_compiling() or _transformed():
        return list(gradients)
    # Autograd may give one number expanded, or one tensor for two inputs.
    seen: set[int] = set()
    apart: list[Any] = []
    for gradient in gradients:
        dense = gradient.contiguous()
        apart.append(dense.clone() if dense.data_ptr() in seen and dense.numel() else dense)
        seen.add(dense.data_ptr())
    return apart


def norm(gradients: Sequence["Tensor"]) -> "Tensor":
    import torch

    norms = [_length(gradient) for gradient in gradients]
    return norms[0] if len(norms) == 1 else _length(torch.stack([one.to(norms[0].device) for one in norms]))


def _length(x: "Tensor") -> "Tensor":
    import torch

    linalg: Any = torch.linalg  # untyped in torch
    vector_norm = linalg.vector_norm
    dtype = torch.float32 if x.element_size() < 4 else None
    if not x.is_cpu or x.numel() <= _LONG:
        return vector_norm(x, dtype=dtype)
    # The CPU adds squares one after another, and of a million in float32 loses the fourth digit. A product has several
    # sums side by side: of pieces it keeps six digits, in less time.
    flat = x.reshape(-1) if dtype is None else x.reshape(-1).to(dtype)
    whole: Any = flat  # split is untyped in torch
    return torch.stack([piece.dot(piece) for piece in whole.split(_PRODUCT)]).sum().sqrt()


def gram(rows: Sequence[Sequence[Any]]) -> "Tensor":
    import torch

    count = len(rows)
    total: Any = None
    for column in zip(*rows, strict=True):
        present = [gradient for gradient in column if gradient is not None]
        if not present:
            continue
        flat = [None if x is None else upcast("gram", x).reshape(-1) for x in column]
        if present[0].numel() <= _GRAM_BELOW:
            blank = torch.zeros_like(upcast("gram", present[0]).reshape(-1))
            stacked = torch.stack([blank if x is None else x for x in flat])
            products = matmul(stacked, stacked.T)
        else:
            # Pair by pair: no copy of what may be large.
            nothing = torch.zeros((), dtype=flat[0].dtype if flat[0] is not None else None, device=present[0].device)
            products = torch.stack([_dot(a, b, nothing) for a in flat for b in flat]).reshape(count, count)
        total = products if total is None else total + products.to(total.device)
    return torch.zeros(count, count) if total is None else total


def _dot(a: "Tensor | None", b: "Tensor | None", nothing: "Tensor") -> "Tensor":
    return nothing if a is None or b is None else a.dot(b)


def stitch(value: "Tensor", inputs: Sequence["Tensor"], gradients: Sequence["Tensor"]) -> "Tensor":
    plain, functional = _stitch_functions()
    # The form that transforms need binds its arguments by their names at each call, which is half of its time.
    return (functional if tracing(value) else plain).apply(value, len(inputs), *inputs, *gradients)


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
            inputs, gradients = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
            # In float32 at least: the scale of a loss in half precision is beyond what that can hold.
            returned = [(upstream * upcast("stitch", g)).to(g.dtype) for g in gradients]
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                once: Any = Once
                returned = [once.apply(g, *inputs) for g in returned]
            return upstream if ctx.needs_input_grad[0] else None, None, *returned, *([None] * ctx.count)

    class Once(torch.autograd.Function):
        """A gradient that came as numbers: differentiating it again would give 0, silently."""

        generate_vmap_rule = True

        @staticmethod
        def forward(gradient: Any, *inputs: Any) -> Any:
            return gradient.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise GradientError(FIRST_ORDER)

    class Plain(torch.autograd.Function):
        """The same, in the older form."""

        @staticmethod
        def forward(ctx: Any, value: Any, count: int, *tensors: Any) -> Any:
            Stitch.setup_context(ctx, (value, count, *tensors), value)
            return value.clone()

        backward = Stitch.backward

    _stitch = Plain, Stitch
    return _stitch


def sum_over_rows(fn: Callable[..., "Tensor"], arrays: Sequence["Tensor"], size: int) -> "Tensor":
    import torch
    from torch.utils import checkpoint

    # Checkpointed: a piece keeps nothing but its rows, and is computed again when its gradient is due. Split, not
    # sliced: the backward of each slice would write a whole array.
    module: Any = checkpoint
    again = module.checkpoint
    # The compiler decides itself what to compute again, and torch.func knows no checkpoints.
    keep = torch.is_grad_enabled() and not torch.compiler.is_compiling() and not _transformed()
    untyped: Sequence[Any] = arrays
    pieces = zip(*[x.split(size) for x in untyped], strict=True)
    return add([again(fn, *piece, use_reentrant=False) if keep else fn(*piece) for piece in pieces])
