"""The operations on JAX arrays, traced ones too.

Nothing here imports jax at module level: these functions only ever see JAX arrays, so jax is loaded by then.
"""

import builtins
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import FIRST_ORDER, BackendError, GradientError
from .protocol import Slope

if TYPE_CHECKING:
    import numpy as np
    from jax import Array

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

LIBRARY: Final = "JAX"
GENERATOR: Final = "a JAX key"

# Without jit packing halves the time of 64 leaves of any size; under jit it costs 5 % up to here and more beyond.
_PACK_BELOW: Final = 1024


def _jax() -> Any:
    """The library, untyped: much of its numpy module is so itself."""
    import jax

    return jax


def upcast(function: str, x: "Array") -> "Array":
    jnp = _jax().numpy
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)
    if not (jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool):
        raise BackendError(f"{function}: an array has dtype {x.dtype}; expected real numbers")
    return x.astype(float)


def cast(x: "Array", like: "Array") -> "Array":
    return x.astype(like.dtype)


def constant(values: "np.ndarray[Any, Any]", like: "Array") -> "Array":
    return _jax().numpy.asarray(values, like.dtype if values.dtype.kind == "f" else None)


def arange(size: int, like: "Array") -> "Array":
    return _jax().numpy.arange(size, dtype=like.dtype)


def eye(size: int, like: "Array") -> "Array":
    return _jax().numpy.eye(size, dtype=like.dtype)


def packs(leaves: Sequence["Array"]) -> bool:
    size = 0
    for leaf in leaves:
        size += leaf.size
    return size <= _PACK_BELOW * len(leaves)


def concatenate(leaves: Sequence["Array"]) -> "Array":
    return _jax().numpy.concatenate([leaf if leaf.ndim == 1 else leaf.reshape(-1) for leaf in leaves])


def add(scalars: Sequence["Array"]) -> "Array":
    total = scalars[0]
    for scalar in scalars[1:]:
        total = total + scalar
    return total


def abs(x: "Array") -> "Array":
    # JAX's own |x| has gradient 1 at 0.
    return x * stop_gradient(_jax().numpy.sign(x))


def square(x: "Array") -> "Array":
    return x * x


def smooth_abs(x: "Array", delta: float, reduction: str) -> "Array":
    size = abs(x)
    inside = clip(size, None, delta)
    values = (inside / delta) * (size - inside / 2)
    if reduction == "none":
        return values
    return sum(values) if reduction == "sum" else mean(values)


def exp(x: "Array") -> "Array":
    return _jax().numpy.exp(x)


def expm1(x: "Array") -> "Array":
    return _jax().numpy.expm1(x)


def log(x: "Array") -> "Array":
    return _log()(x)


@functools.cache
def _log() -> Callable[["Array"], "Array"]:
    """The logarithm with `exp(−log x)` for its slope: JAX forms 1/x² on the way to the second derivative of `t/x`."""
    jax = _jax()

    def tangent(primals: tuple["Array"], tangents: tuple["Array"]) -> tuple["Array", "Array"]:
        value = log(primals[0])
        return value, tangents[0] * exp(-value)

    plain: Any = jax.custom_jvp(jax.numpy.log)
    plain.defjvp(tangent)
    return plain


def cos(x: "Array") -> "Array":
    return _jax().numpy.cos(x)


def sqrt(x: "Array") -> "Array":
    return _jax().numpy.sqrt(x)


def clip(x: "Array", low: float | None, high: float | None) -> "Array":
    jnp = _jax().numpy
    # JAX's own clip has gradient 1/2 at a bound.
    if low is not None:
        x = jnp.where(x < low, low, x)
    if high is not None:
        x = jnp.where(x > high, high, x)
    return x


def where(condition: "Array", yes: Any, no: Any) -> "Array":
    return _jax().numpy.where(condition, yes, no)


def subtract_where(condition: "Array", a: "Array", b: "Array") -> "Array":
    # Not one mask over the difference: jax_debug_nans would report −inf − (−inf) in there.
    return where(condition, a, 0.0) - where(condition, b, 0.0)


def log_tiny(x: "Array") -> float:
    return math.log(4) + math.log(float(_jax().numpy.finfo(x.dtype).tiny))


def sum(x: "Array", axis: int | None = None, *, keepdims: bool = False) -> "Array":
    return _jax().numpy.sum(x, axis=axis, keepdims=keepdims)


def mean(x: "Array") -> "Array":
    return _jax().numpy.mean(x) if x.size else sum(x)


def amax(x: "Array", axis: int | None = None, *, keepdims: bool = False) -> "Array":
    return _jax().numpy.max(x, axis=axis, keepdims=keepdims)


def any(x: "Array") -> "Array":
    return _jax().numpy.any(x, axis=-1)


def log_softmax(x: "Array") -> "Array":
    return _jax().nn.log_softmax(x, axis=-1)


def matmul(a: "Array", b: "Array") -> "Array":
    return _jax().numpy.matmul(a, b, precision="highest")


def moveaxis(x: "Array", source: int, to: int) -> "Array":
    return _jax().numpy.moveaxis(x, source, to)


def svdvals(x: "Array") -> "Array":
    return _jax().numpy.linalg.svd(x, compute_uv=False)


def take(x: "Array", rows: "Array") -> "Array":
    return x[rows]


def stop_gradient(x: "Array") -> "Array":
    return _jax().lax.stop_gradient(x)


def power_iteration(matrix: "Array", start: "Array", times: int) -> "Array":
    # One function for every call, with the matrix as its argument: a closure would be compiled anew each time.
    _, vector = _jax().lax.fori_loop(0, times, _turn, (matrix, start))
    return vector


def _turn(_: int, state: tuple["Array", "Array"]) -> tuple["Array", "Array"]:
    matrix, vector = state
    vector = matmul(matrix, matmul(matrix, vector))
    largest = amax(abs(vector))
    return matrix, vector / where(largest > 0, largest, 1.0)


def draws(seed: Any) -> bool:
    jax = _jax()
    jnp = jax.numpy
    if not isinstance(seed, jax.Array):
        return False
    return jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) or (seed.dtype == jnp.uint32 and seed.shape == (2,))


def uniform(seed: "Array", count: int, like: "Array") -> "Array":
    return _jax().random.uniform(seed, (count,), like.dtype)


def choice(seed: "Array", total: int, count: int, like: "Array") -> "Array":
    return _jax().random.choice(seed, total, (count,), replace=False)


def value_and_gradient(function: str, fn: Callable[["Array"], "Array"], x: "Array") -> tuple["Array", "Array"]:
    jax = _jax()
    jnp = jax.numpy
    value, pull_back = jax.vjp(fn, x)
    return value, pull_back(jnp.ones_like(value))[0]


# What composition needs: gradients of several terms, their sum, and numbers for people.


def tracing(x: object) -> bool:
    return isinstance(x, _jax().core.Tracer)


def settled(value: "Array", like: "Array") -> bool:
    jnp = _jax().numpy
    return not value.ndim and jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize >= 4


def device(x: "Array") -> Any:
    # JAX itself refuses arrays that were put on two devices.
    return None


def zero(like: "Array") -> "Array":
    return _jax().numpy.zeros(())


def as_array(value: Any, like: "Array") -> "Array":
    jnp = _jax().numpy
    return jnp.asarray(value, like.dtype if jnp.issubdtype(like.dtype, jnp.floating) else None)


def differentiable(x: "Array", *, asked: bool) -> bool:
    jnp = _jax().numpy
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def captures(value: "Array", inputs: Sequence["Array"]) -> bool:
    return False


def loose(value: "Array") -> bool:
    return False


def weighted_sum(values: Sequence[Any], weights: Sequence[Any]) -> "Array":
    return add([value * weight for value, weight in zip(values, weights, strict=True)])


def read(arrays: Sequence["Array"]) -> list[Any]:
    if builtins.any(tracing(x) for x in arrays):
        raise BackendError("values cannot be read inside jax.jit or another transform: return the output, then read it")
    # One transfer: all copies start before the first is waited for.
    return [x.tolist() for x in _jax().device_get(list(arrays))]


def value_and_gradients(
    fn: Callable[[Sequence["Array"]], tuple["Array", list["Array"]]], leaves: Sequence["Array"], scale: float
) -> tuple["Array", list["Array"], list[Any]]:
    reached: list[bool] = []

    def watched(xs: Sequence["Array"]) -> tuple["Array", list["Array"]]:
        value, arrays = fn(xs)
        return _watch()(value, _Watch(reached)), arrays

    jax = _jax()
    value, pull_back, arrays = jax.vjp(watched, list(leaves), has_aux=True)
    (gradients,) = pull_back(jax.numpy.full_like(value, scale))
    # The compiler would otherwise compute a gradient once for its norm and once more for the sum.
    gradients = jax.lax.optimization_barrier(gradients)
    return value, arrays, gradients if reached else [None] * len(leaves)


class _Watch:
    """Notes that a tangent came by. JAX gives zeros where there is no path; its rule is not called there."""

    def __init__(self, reached: list[bool]) -> None:
        self.reached = reached


@functools.cache
def _watch() -> Any:
    jax = _jax()

    @functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
    def watch(value: Any, note: _Watch) -> Any:
        return value

    @watch.defjvp
    def rule(note: _Watch, primals: Any, tangents: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
        note.reached.append(True)
        return primals[0], tangents[0]

    return watch


def accumulate(total: Any, gradient: "Array", weight: Any, *, owned: bool) -> "Array":
    scaled = (gradient * stop_gradient(weight)).astype(gradient.dtype)
    return scaled if total is None else total + scaled


def add_gradients(
    fn: Callable[..., "Array"],
    arrays: Sequence["Array"],
    wanted: Sequence[int],
    *,
    scale: float,
    mean: bool,
    sum_at: Callable[[int], "Array"],
    weight: float,
    slope: Slope | None,
) -> tuple["Array", list["Array"]] | None:
    # The compiler decides what stays in the cache.
    return None


def zeros_like(x: "Array") -> "Array":
    return _jax().numpy.zeros_like(x)


def separate(gradients: Sequence[Any]) -> list[Any]:
    return list(gradients)


def norm(gradients: Sequence["Array"]) -> "Array":
    return sqrt(add([sum(square(upcast("norm", gradient))) for gradient in gradients]))


def gram(rows: Sequence[Sequence[Any]]) -> "Array":
    jnp = _jax().numpy
    flat = [
        jnp.concatenate(
            [
                jnp.zeros(_shape(column)).reshape(-1) if x is None else upcast("gram", x).reshape(-1)
                for x, column in zip(row, zip(*rows, strict=True), strict=True)
            ]
        )
        for row in rows
    ]
    stacked = jnp.stack(flat)
    return matmul(stacked, stacked.T)


def _shape(column: Sequence[Any]) -> tuple[int, ...]:
    """The shape of the gradients of one leaf, of which some are missing."""
    return next((x.shape for x in column if x is not None), (0,))


def stitch(value: "Array", inputs: Sequence["Array"], gradients: Sequence["Array"]) -> "Array":
    return _stitch()(value, list(inputs), list(gradients))


@functools.cache
def _stitch() -> Any:
    jax = _jax()

    @jax.custom_vjp
    def stitched(value: Any, inputs: Any, gradients: Any) -> Any:
        return value

    def forward(value: Any, inputs: Any, gradients: Any) -> Any:
        return value, (value, inputs, gradients)

    def backward(kept: Any, upstream: Any) -> Any:
        value, inputs, gradients = kept
        nothing = jax.tree_util.tree_map(jax.numpy.zeros_like, gradients)
        found = [(upstream * g).astype(g.dtype) for g in gradients]
        return jax.numpy.zeros_like(value), _once()(found, inputs), nothing

    stitched.defvjp(forward, backward)
    return stitched


@functools.cache
def _once() -> Any:
    """Gradients that came as numbers: differentiating them again would give 0, silently."""
    jax = _jax()

    @jax.custom_jvp
    def once(gradients: Any, inputs: Any) -> Any:
        return gradients

    @once.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise GradientError(FIRST_ORDER)

    return once


def sum_over_rows(fn: Callable[..., "Array"], arrays: Sequence["Array"], size: int) -> "Array":
    jax = _jax()
    whole = len(arrays[0]) // size
    total: Any = None
    if whole:
        # Checkpointed: a piece keeps nothing but its rows, and is computed again when its gradient is due.
        again = jax.checkpoint(fn)
        stacks = [x[: whole * size].reshape(whole, size, *x.shape[1:]) for x in arrays]
        first = again(*[stack[0] for stack in stacks])

        def more(total: Any, piece: Any) -> tuple[Any, None]:
            return total + again(*piece), None

        total, _ = jax.lax.scan(more, first, [stack[1:] for stack in stacks])
    if len(arrays[0]) > whole * size:
        rest = fn(*[x[whole * size :] for x in arrays])
        total = rest if total is None else total + rest
    return total
