"""Array operations on JAX arrays, traced ones too."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...errors import BackendError, not_whole

if TYPE_CHECKING:
    import numpy as np
    from jax import Array

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
    "log_softmax_at",
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

LIBRARY: Final = "JAX"
GENERATOR: Final = "a JAX key"

# Without jit packing halves the time of 64 leaves of any size; under jit it costs 5 % up to here and more beyond.
_PACK_BELOW: Final = 1024


def library() -> Any:
    """The library, untyped: much of its numpy module is so itself."""
    import jax

    return jax


def upcast(function: str, x: "Array") -> "Array":
    jnp = library().numpy
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)
    if not (jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool):
        raise BackendError(f"{function}: an array has dtype {x.dtype}; expected real numbers")
    return x.astype(float)


def cast(x: "Array", like: "Array") -> "Array":
    return x.astype(like.dtype)


def constant(values: "np.ndarray[Any, Any]", like: "Array") -> "Array":
    return library().numpy.asarray(values, like.dtype if values.dtype.kind == "f" else None)


def arange(size: int, like: "Array") -> "Array":
    return library().numpy.arange(size, dtype=like.dtype)


def eye(size: int, like: "Array") -> "Array":
    return library().numpy.eye(size, dtype=like.dtype)


def packs(leaves: Sequence["Array"]) -> bool:
    size = 0
    for leaf in leaves:
        size += leaf.size
    return size <= _PACK_BELOW * len(leaves)


def concatenate(leaves: Sequence["Array"]) -> "Array":
    return library().numpy.concatenate([leaf if leaf.ndim == 1 else leaf.reshape(-1) for leaf in leaves])


def add(scalars: Sequence["Array"]) -> "Array":
    total = scalars[0]
    for scalar in scalars[1:]:
        total = total + scalar
    return total


def abs(x: "Array") -> "Array":
    # JAX's own |x| has gradient 1 at 0.
    return x * stop_gradient(library().numpy.sign(x))


def square(x: "Array") -> "Array":
    return x * x


def smooth_abs(x: "Array", delta: float, reduction: str) -> "Array":
    size = abs(x)
    near = size < delta
    # Chosen before the parabola too: of what is far outside it may not be finite.
    inside = where(near, x, 0.0)
    values = (inside / delta) * (inside / 2) + where(near, 0.0, size - delta / 2)
    if reduction == "none":
        return values
    return sum(values) if reduction == "sum" else mean(values)


def exp(x: "Array") -> "Array":
    return library().numpy.exp(x)


def expm1(x: "Array") -> "Array":
    return library().numpy.expm1(x)


def log(x: "Array") -> "Array":
    return _log()(x)


@functools.cache
def _log() -> Callable[["Array"], "Array"]:
    """The logarithm whose slope 1/x has the slope −(t/x)/x: JAX itself forms 1/x² on the way, which may overflow."""
    jax = library()

    def log_tangent(primals: tuple["Array"], tangents: tuple["Array"]) -> tuple["Array", "Array"]:
        return log(primals[0]), tangents[0] * inverse(primals[0])

    def inverse_tangent(primals: tuple["Array"], tangents: tuple["Array"]) -> tuple["Array", "Array"]:
        value = inverse(primals[0])
        return value, -(tangents[0] * value) * value

    inverse: Any = jax.custom_jvp(jax.numpy.reciprocal)
    inverse.defjvp(inverse_tangent)
    plain: Any = jax.custom_jvp(jax.numpy.log)
    plain.defjvp(log_tangent)
    return plain


def xlogx(x: "Array", offset: float) -> "Array":
    return _xlogx()(x, offset)


@functools.cache
def _xlogx() -> Callable[["Array", float], "Array"]:
    """With its slope written out: the slope of a product has x² on the way to the second one, which may underflow."""

    def value(x: "Array", offset: float) -> "Array":
        return x * (log(where(x > 0, x, 1.0)) + offset)

    def tangent(offset: float, primals: tuple["Array"], tangents: tuple["Array"]) -> tuple["Array", "Array"]:
        (x,) = primals
        return plain(x, offset), tangents[0] * (log(where(x > 0, x, 1.0)) + (offset + 1.0))

    plain: Any = library().custom_jvp(value, nondiff_argnums=(1,))
    plain.defjvp(tangent)
    return plain


def cos(x: "Array") -> "Array":
    return library().numpy.cos(x)


def sqrt(x: "Array") -> "Array":
    return library().numpy.sqrt(x)


def clip(x: "Array", low: float | None, high: float | None) -> "Array":
    jnp = library().numpy
    # JAX's own clip has gradient 1/2 at a bound.
    if low is not None:
        x = jnp.where(x < low, low, x)
    if high is not None:
        x = jnp.where(x > high, high, x)
    return x


def where(condition: "Array", yes: Any, no: Any) -> "Array":
    return library().numpy.where(condition, yes, no)


def subtract_where(condition: "Array", a: "Array", b: "Array") -> "Array":
    # Not one mask over the difference: jax_debug_nans would report −inf − (−inf) in there.
    return where(condition, a, 0.0) - where(condition, b, 0.0)


def limits(x: "Array") -> tuple[float, float]:
    info = library().numpy.finfo(x.dtype)
    return float(info.tiny), float(info.max)


def sum(x: "Array", axis: int | None = None, *, keepdims: bool = False) -> "Array":
    return library().numpy.sum(x, axis=axis, keepdims=keepdims)


def mean(x: "Array") -> "Array":
    return library().numpy.mean(x) if x.size else sum(x)


def amax(x: "Array", axis: int | None = None, *, keepdims: bool = False) -> "Array":
    return library().numpy.max(x, axis=axis, keepdims=keepdims)


def any(x: "Array") -> "Array":
    return library().numpy.any(x, axis=-1)


def log_softmax(x: "Array") -> "Array":
    return library().nn.log_softmax(x, axis=-1)


def log_softmax_at(x: "Array", indices: "Array", shown: "Array | None", temperature: float) -> "Array":
    wide = upcast("log_softmax", x)
    if shown is None:
        return take_along(log_softmax(wide / temperature), indices)
    hidden = ~shown[..., None]
    return where(hidden, 0.0, take_along(log_softmax(where(hidden, 0.0, wide) / temperature), indices))


def take_along(x: "Array", indices: "Array") -> "Array":
    return library().numpy.take_along_axis(x, indices, -1)


def indices(function: str, name: str, x: "Array") -> "Array":
    jnp = library().numpy
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise not_whole(function, name, x)
    return x.astype(int)


def at_hand(x: "Array") -> bool:
    # The same inside jit and outside.
    return False


def matmul(a: "Array", b: "Array") -> "Array":
    return library().numpy.matmul(a, b, precision="highest")


def moveaxis(x: "Array", source: int, to: int) -> "Array":
    return library().numpy.moveaxis(x, source, to)


def svdvals(x: "Array") -> "Array":
    return library().numpy.linalg.svd(x, compute_uv=False)


def take(x: "Array", rows: "Array") -> "Array":
    return x[rows]


def stop_gradient(x: "Array") -> "Array":
    return library().lax.stop_gradient(x)


def whole(x: "Array") -> "Array":
    return x


def power_iteration(matrix: "Array", start: "Array", times: int) -> "Array":
    # One function for every call, with the matrix as its argument: a closure would be compiled anew each time.
    _, vector = library().lax.fori_loop(0, times, _turn, (matrix, start))
    return vector


def _turn(_: int, state: tuple["Array", "Array"]) -> tuple["Array", "Array"]:
    matrix, vector = state
    vector = matmul(matrix, matmul(matrix, vector))
    largest = amax(abs(vector))
    return matrix, vector / where(largest > 0, largest, 1.0)


def draws(seed: Any) -> bool:
    jax = library()
    jnp = jax.numpy
    if not isinstance(seed, jax.Array):
        return False
    return jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) or (seed.dtype == jnp.uint32 and seed.shape == (2,))


def uniform(seed: "Array", count: int, like: "Array") -> "Array":
    return library().random.uniform(seed, (count,), like.dtype)


def choice(seed: "Array", total: int, count: int, like: "Array") -> "Array":
    return library().random.choice(seed, total, (count,), replace=False)


def value_and_gradient(function: str, fn: Callable[["Array"], "Array"], x: "Array") -> tuple["Array", "Array"]:
    jax = library()
    jnp = jax.numpy
    value, pull_back = jax.vjp(fn, x)
    return value, pull_back(jnp.ones_like(value))[0]


def tracing(x: object) -> bool:
    return isinstance(x, library().core.Tracer)
