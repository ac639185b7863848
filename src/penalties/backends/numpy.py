"""The operations on NumPy arrays."""

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from ..errors import BackendError, GradientError, not_whole

__all__ = [
    "GENERATOR",
    "LIBRARY",
    "abs",
    "accumulate",
    "add",
    "add_weight_gradients",
    "amax",
    "any",
    "arange",
    "as_array",
    "at_hand",
    "barred",
    "block",
    "captures",
    "cast",
    "choice",
    "clip",
    "concatenate",
    "constant",
    "cos",
    "detached",
    "device",
    "differentiable",
    "draws",
    "exp",
    "expm1",
    "eye",
    "gram",
    "indices",
    "kind",
    "limits",
    "log",
    "log_softmax",
    "log_softmax_at",
    "map_rows",
    "matmul",
    "mean",
    "moveaxis",
    "norm",
    "packs",
    "power_iteration",
    "pullback",
    "read",
    "separate",
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
    "take_along",
    "tracing",
    "uniform",
    "upcast",
    "value_and_gradient",
    "value_and_gradients",
    "weighted_sum",
    "where",
    "whole",
    "xlogx",
    "zero",
    "zeros_like",
]

NDArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]

LIBRARY: Final = "NumPy"
GENERATOR: Final = "a numpy.random.Generator"

# Packing copies once and saves one round of Python per leaf. It stops paying at about this mean leaf size, and where
# the copy is so large that the allocator fetches fresh pages for it.
_PACK_BELOW: Final = 8192
_PACK_AT_MOST: Final = 2**17


def upcast(function: str, x: NDArray) -> NDArray:
    _check_plain(f"{function}: ", x)
    kind, bits = x.dtype.kind, 8 * x.dtype.itemsize
    if kind == "f" and bits >= 32:
        return x
    if kind in "iub":
        return x.astype(np.float64)
    # bfloat16 and the eight-bit floats come from ml_dtypes; NumPy files them under "V" or "f" by version.
    if kind == "f" or x.dtype.name.startswith(("bfloat16", "float8")):
        return x.astype(np.float32)
    raise BackendError(f"{function}: an array has dtype {x.dtype}; expected real numbers")


def cast(x: NDArray, like: NDArray) -> NDArray:
    return x.astype(like.dtype)


def constant(values: NDArray, like: NDArray) -> NDArray:
    return cast(values, like) if values.dtype.kind == "f" else values


def arange(size: int, like: NDArray) -> NDArray:
    return np.arange(size, dtype=like.dtype)


def eye(size: int, like: NDArray) -> NDArray:
    return np.eye(size, dtype=like.dtype)


def packs(leaves: Sequence[NDArray]) -> bool:
    size = 0
    for leaf in leaves:
        size += leaf.size
    return size <= min(_PACK_BELOW * len(leaves), _PACK_AT_MOST)


def concatenate(leaves: Sequence[NDArray]) -> NDArray:
    return np.concatenate([leaf.reshape(-1) for leaf in leaves])


def add(scalars: Sequence[NDArray]) -> NDArray:
    total = scalars[0]
    for scalar in scalars[1:]:
        total = total + scalar
    return total


def abs(x: NDArray) -> NDArray:
    return np.abs(x)


def square(x: NDArray) -> NDArray:
    return np.square(x)


def smooth_abs(x: NDArray, delta: float, reduction: str) -> NDArray:
    size = np.abs(x)
    inside = np.minimum(size, delta)
    values = (inside / delta) * (size - inside / 2)
    if reduction == "none":
        return values
    return sum(values) if reduction == "sum" else mean(values)


def exp(x: NDArray) -> NDArray:
    return np.exp(x)


def expm1(x: NDArray) -> NDArray:
    return np.expm1(x)


def log(x: NDArray) -> NDArray:
    return np.log(x)


def xlogx(x: NDArray, offset: float) -> NDArray:
    return x * (np.log(np.where(x > 0, x, 1.0)) + offset)


def cos(x: NDArray) -> NDArray:
    return np.cos(x)


def sqrt(x: NDArray) -> NDArray:
    return np.sqrt(x)


def clip(x: NDArray, low: float | None, high: float | None) -> NDArray:
    return np.clip(x, low, high)


def where(condition: NDArray, yes: Any, no: Any) -> NDArray:
    choose: Any = np.where  # its type is partly unknown for operands that are numbers or arrays
    return choose(condition, yes, no)


def subtract_where(condition: NDArray, a: NDArray, b: NDArray) -> NDArray:
    return where(condition, a, 0.0) - where(condition, b, 0.0)


def limits(x: NDArray) -> tuple[float, float]:
    info = np.finfo(x.dtype)
    # Of a long double they are beyond what a float can hold.
    return max(float(info.tiny), sys.float_info.min), min(float(info.max), sys.float_info.max)


def sum(x: NDArray, axis: int | None = None, *, keepdims: bool = False) -> NDArray:
    return np.sum(x, axis=axis, keepdims=keepdims)


def mean(x: NDArray) -> NDArray:
    mean: Any = np.mean if x.size else np.sum
    return mean(x)


def amax(x: NDArray, axis: int | None = None, *, keepdims: bool = False) -> NDArray:
    largest: Any = np.max(x, axis=axis, keepdims=keepdims)
    return largest


def any(x: NDArray) -> NDArray:
    return np.any(x, axis=-1)


def log_softmax(x: NDArray) -> NDArray:
    if x.size == 0:
        return x
    # A row of -inf alone has no distribution: NaN, as silently as in the other libraries.
    with np.errstate(invalid="ignore"):
        shifted = x - np.max(x, axis=-1, keepdims=True)
        return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def log_softmax_at(x: NDArray, indices: NDArray, shown: NDArray | None, temperature: float) -> NDArray:
    wide = upcast("log_softmax", x)
    if shown is None:
        return take_along(log_softmax(wide / temperature), indices)
    hidden = ~shown[..., None]
    return where(hidden, 0.0, take_along(log_softmax(where(hidden, 0.0, wide) / temperature), indices))


def take_along(x: NDArray, indices: NDArray) -> NDArray:
    return np.take_along_axis(x, indices, -1)


def indices(function: str, name: str, x: NDArray) -> NDArray:
    if x.dtype.kind not in "iu":
        raise not_whole(function, name, x)
    return x.astype(np.int64)


def at_hand(x: NDArray) -> bool:
    return True


def matmul(a: NDArray, b: NDArray) -> NDArray:
    return a @ b


def moveaxis(x: NDArray, source: int, to: int) -> NDArray:
    return np.moveaxis(x, source, to)


def svdvals(x: NDArray) -> NDArray:
    return np.linalg.svdvals(x)


def take(x: NDArray, rows: NDArray) -> NDArray:
    return x[rows]


def stop_gradient(x: NDArray) -> NDArray:
    return x


def whole(x: NDArray) -> NDArray:
    _check_plain("", x)
    return x


def _check_plain(prefix: str, x: NDArray) -> None:
    # Masked elements are left out of sums and counted by means; matrices have products of their own.
    masked = sys.modules.get("numpy.ma")
    if isinstance(x, np.matrix) or (masked is not None and isinstance(x, masked.MaskedArray)):
        raise BackendError(
            f"{prefix}an array is a {type(x).__name__}; expected a plain one: np.asarray(x); masks go to mask="
        )


def power_iteration(matrix: NDArray, start: NDArray, times: int) -> NDArray:
    vector = start
    for _ in range(times):
        vector = matmul(matrix, matmul(matrix, vector))
        largest = amax(abs(vector))
        vector = vector / where(largest > 0, largest, 1.0)
    return vector


def draws(seed: object) -> bool:
    return isinstance(seed, np.random.Generator)


def uniform(seed: np.random.Generator, count: int, like: NDArray) -> NDArray:
    return seed.random(count).astype(like.dtype)


def choice(seed: np.random.Generator, total: int, count: int, like: NDArray) -> NDArray:
    return seed.choice(total, count, replace=False)


def value_and_gradient(function: str, fn: Callable[[NDArray], NDArray], x: NDArray) -> tuple[NDArray, NDArray]:
    raise BackendError(f"{function}: NumPy has no gradients; pass a torch.Tensor or a jax.Array")


# What composition needs: gradients of several terms, their sum, and numbers for people.


def tracing(x: object) -> bool:
    return False


def device(x: NDArray) -> Any:
    return None


def kind(x: NDArray) -> Hashable:
    return type(x), x.dtype, x.shape


def zero(like: NDArray) -> NDArray:
    return np.zeros(())


def as_array(value: Any, like: NDArray) -> NDArray:
    return np.asarray(value, like.dtype if like.dtype.kind == "f" else None)


def differentiable(x: NDArray, *, requested: bool) -> bool:
    return x.dtype.kind == "f"


def captures(value: NDArray, inputs: Sequence[NDArray]) -> bool:
    return False


def detached(value: NDArray) -> bool:
    return False


def weighted_sum(values: Sequence[Any], weights: Sequence[Any]) -> NDArray:
    return add([value * weight for value, weight in zip(values, weights, strict=True)])


def read(arrays: Sequence[NDArray]) -> list[Any]:
    return [x.tolist() for x in arrays]


def value_and_gradients(
    fn: Callable[[Sequence[NDArray]], tuple[NDArray, list[NDArray]]], leaves: Sequence[NDArray]
) -> tuple[NDArray, list[NDArray], list[NDArray | None]]:
    raise GradientError(_NO_GRADIENTS)


def pullback(fn: Callable[[NDArray], NDArray], x: NDArray) -> tuple[NDArray, Callable[[NDArray], NDArray]]:
    raise GradientError(_NO_GRADIENTS)


_NO_GRADIENTS: Final = (
    "NumPy has no automatic differentiation: pass torch or JAX arrays, or return "
    "Evaluation(value, gradient={input: array}) from the term"
)


def accumulate(total: NDArray | None, gradient: NDArray, weight: Any, *, owned: bool) -> NDArray:
    return gradient * weight if total is None else total + gradient * weight


def add_weight_gradients(
    gradients: Sequence[Any], leaves: Sequence[NDArray], weighted: Sequence[tuple[Any, Any]]
) -> list[Any]:
    # Here weights do not know what they were computed from.
    return list(gradients)


def zeros_like(x: NDArray) -> NDArray:
    return np.zeros_like(x)


def separate(gradients: Sequence[Any]) -> list[Any]:
    return list(gradients)


def norm(gradients: Sequence[NDArray]) -> NDArray:
    lengths = [_length(upcast("norm", gradient)) for gradient in gradients]
    return lengths[0] if len(lengths) == 1 else _length(np.stack(lengths))


def _length(x: NDArray) -> NDArray:
    # Divided by the largest element: squares may be out of range.
    largest = np.abs(x).max(initial=0)
    return largest * sqrt(sum(square(x / largest))) if 0 < largest < np.inf else largest


def gram(rows: Sequence[Sequence[NDArray | None]]) -> tuple[NDArray, NDArray]:
    wide = [[None if x is None else upcast("gram", x) for x in row] for row in rows]
    scales = np.array([_power_of_two([x for x in row if x is not None]) for row in wide])
    products = np.zeros((len(rows), len(rows)))
    for column in zip(*wide, strict=True):
        scaled = [None if x is None else x / scale for x, scale in zip(column, scales, strict=True)]
        for i, a in enumerate(scaled):
            for j, b in enumerate(scaled):
                if a is not None and b is not None:
                    products[i, j] += (a * b).sum()
    return products, scales


def _power_of_two(row: Sequence[NDArray]) -> Any:
    """One near the largest element of some arrays; 1 where that is 0 or not finite."""
    largest = max([np.abs(x).max(initial=0) for x in row], default=np.float64(0))
    if not 0 < largest < np.inf:
        return np.float64(1)
    return np.float64(2) ** np.clip(np.frexp(largest)[1] - 1, -1022, 1022)


def stitch(value: NDArray, inputs: Sequence[NDArray], gradients: Sequence[NDArray]) -> NDArray:
    return value


def barred(value: NDArray, inputs: Sequence[NDArray], message: str) -> NDArray:
    return value


def block(like: NDArray) -> int:
    return 2**23


def map_rows(fn: Callable[..., NDArray], arrays: Sequence[NDArray], size: int) -> NDArray:
    return np.concatenate(_of_pieces(fn, arrays, size))


def sum_over_rows(fn: Callable[..., NDArray], arrays: Sequence[NDArray], size: int) -> NDArray:
    return add(_of_pieces(fn, arrays, size))


def _of_pieces(fn: Callable[..., NDArray], arrays: Sequence[NDArray], size: int) -> list[NDArray]:
    starts = range(0, len(arrays[0]), size)
    return [fn(*[x[start : start + size] for x in arrays]) for start in starts]
