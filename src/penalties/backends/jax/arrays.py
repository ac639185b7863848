"""Array operations on JAX arrays, traced ones too."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...errors import BackendError

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
    "tracing",
    "uniform",
    "upcast",
    "value_and_gradient",
    "where",
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
    """The logarithm with `exp(−log x)` for its slope: JAX forms 1/x² on the way to the second derivative of `t/x`."""
    jax = library()

    def tangent(primals: tuple["Array"], tangents: tuple["Array"]) -> tuple["Array", "Array"]:
        value = log(primals[0])
        return value, tangents[0] * exp(-value)

    plain: Any = jax.custom_jvp(jax.numpy.log)
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
