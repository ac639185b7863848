"""What composition needs of JAX arrays, traced ones too: gradients of several terms, their sum, and numbers to read."""

import builtins
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import FIRST_ORDER, BackendError, GradientError
from ..precision import SCALES
from .arrays import add, library, matmul, sqrt, square, stop_gradient, sum, tracing, upcast

if TYPE_CHECKING:
    from jax import Array

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
    "gram",
    "kind",
    "map_rows",
    "norm",
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


def device(x: "Array") -> Any:
    # JAX itself raises for arrays on different devices.
    return None


def kind(x: "Array") -> Hashable:
    return type(x), x.dtype, x.shape


def zero(like: "Array") -> "Array":
    return library().numpy.zeros(())


def as_array(value: Any, like: "Array") -> "Array":
    jnp = library().numpy
    return jnp.asarray(value, like.dtype if jnp.issubdtype(like.dtype, jnp.floating) else None)


def differentiable(x: "Array", *, requested: bool) -> bool:
    jnp = library().numpy
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def captures(value: "Array", inputs: Sequence["Array"]) -> bool:
    return False


def detached(value: "Array") -> bool:
    return False


def weighted_sum(values: Sequence[Any], weights: Sequence[Any]) -> "Array":
    return add([value * weight for value, weight in zip(values, weights, strict=True)])


def read(arrays: Sequence["Array"]) -> list[Any]:
    if builtins.any(tracing(x) for x in arrays):
        raise BackendError("values cannot be read inside jax.jit or another transform: return the output, then read it")
    # One transfer: all copies start before the first is waited for.
    return [x.tolist() for x in library().device_get(list(arrays))]


def value_and_gradients(
    fn: Callable[[Sequence["Array"]], tuple["Array", list["Array"]]], leaves: Sequence["Array"]
) -> tuple["Array", list["Array"], list[Any]]:
    def alone(xs: Sequence["Array"]) -> tuple[list["Array"], list["Array"]]:
        value, arrays = fn(xs)
        return [value], arrays

    (value,), arrays, (gradients,) = values_and_gradients(alone, leaves)
    return value, arrays, gradients


def values_and_gradients(
    fn: Callable[[Sequence["Array"]], tuple[list["Array"], Any]], leaves: Sequence["Array"]
) -> tuple[list["Array"], Any, list[list[Any]]]:
    """`value_and_gradients` of several scalars that are computed together: one pass forward, and one back for each."""
    reached: list[list[bool]] = []

    def watched(xs: Sequence["Array"]) -> tuple[list["Array"], Any]:
        values, further = fn(xs)
        reached.extend([] for _ in values)
        return [_watch()(value, _Watch(note)) for value, note in zip(values, reached, strict=True)], further

    jax = library()
    values, pull_back, further = jax.vjp(watched, list(leaves), has_aux=True)
    half = builtins.any(leaf.dtype == jax.numpy.float16 for leaf in leaves)

    def pull(index: int, scale: float) -> list["Array"]:
        upstream = [jax.numpy.full_like(value, scale * (other == index)) for other, value in enumerate(values)]
        (gradients,) = pull_back(upstream)
        return [(g.astype("float32") if g.dtype == jax.numpy.float16 else g) / scale for g in gradients]

    def gradients_of(index: int) -> list[Any]:
        if not reached[index]:
            return [None] * len(leaves)
        if half:
            # Each element from the scale at which it fits.
            large, small = (pull(index, scale) for scale in SCALES)
            gradients = [jax.numpy.where(jax.numpy.isfinite(a), a, b) for a, b in zip(large, small, strict=True)]
        else:
            gradients = pull(index, 1.0)
        # The compiler would otherwise compute a gradient once for its norm and once more for the sum.
        return jax.lax.optimization_barrier(gradients)

    return values, further, [gradients_of(index) for index in range(len(values))]


def pullback(fn: Callable[["Array"], "Array"], x: "Array") -> tuple["Array", Callable[["Array"], "Array"]]:
    value, pull_back = library().vjp(fn, x)
    return value, lambda gradient: pull_back(gradient)[0]


class _Watch:
    """Records whether a tangent reached it. Without a path JAX returns zeros, and the rule is not called."""

    def __init__(self, reached: list[bool]) -> None:
        self.reached = reached


@functools.cache
def _watch() -> Any:
    jax = library()

    @functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
    def watch(value: Any, note: _Watch) -> Any:
        return value

    @watch.defjvp
    def rule(note: _Watch, primals: Any, tangents: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
        note.reached.append(True)
        return primals[0], tangents[0]

    return watch


def accumulate(total: Any, gradient: "Array", weight: Any, *, owned: bool) -> "Array":
    # Half precision is added up in float32: small terms would vanish beside large ones.
    gradient = upcast("accumulate", gradient)
    scaled = (gradient * stop_gradient(weight)).astype(gradient.dtype)
    return scaled if total is None else total + scaled


def add_weight_gradients(
    gradients: Sequence[Any], leaves: Sequence["Array"], weighted: Sequence[tuple[Any, Any]]
) -> list[Any]:
    # Here weights do not know what they were computed from.
    return list(gradients)


def zeros_like(x: "Array") -> "Array":
    return library().numpy.zeros_like(x)


def separate(gradients: Sequence[Any]) -> list[Any]:
    return list(gradients)


def norm(gradients: Sequence["Array"]) -> "Array":
    length = _length()
    lengths = [length(upcast("norm", gradient)) for gradient in gradients]
    return lengths[0] if len(lengths) == 1 else length(library().numpy.stack(lengths))


@functools.cache
def _length() -> Callable[["Array"], "Array"]:
    """The length of an array, of whatever size its elements are: their squares may be out of range."""
    jax = library()

    def root(squares: "Array", x: "Array") -> "Array":
        return sqrt(squares)

    def scaled(squares: "Array", x: "Array") -> "Array":
        # A constant in derivatives: it cancels.
        largest = stop_gradient(abs(x).max(initial=0))
        usable = (largest > 0) & (largest < math.inf)
        return jax.numpy.where(usable, largest * sqrt(sum(square(x / largest))), largest)

    def length(x: "Array") -> "Array":
        squares = sum(square(x))
        info = jax.numpy.finfo(x.dtype)
        usual = (squares > info.tiny / info.eps**2) & (squares < math.inf)
        return jax.lax.cond(usual, root, scaled, squares, x)

    return jax.jit(length)


def gram(rows: Sequence[Sequence[Any]]) -> tuple["Array", "Array"]:
    jnp = library().numpy
    if not rows:
        return jnp.zeros((0, 0)), jnp.zeros(0)
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
    # A constant in derivatives: it cancels.
    largest = stop_gradient(jnp.abs(stacked).max(axis=1, initial=0.0))
    _, exponents = jnp.frexp(jnp.where((largest > 0) & (largest < math.inf), largest, 1.0))
    # Up to here its inverse, by which XLA multiplies, is a normal number.
    bound = -jnp.finfo(largest.dtype).minexp
    scales = jnp.ldexp(jnp.ones_like(largest), jnp.clip(exponents - 1, -bound, bound))
    stacked = stacked / scales[:, None]
    return matmul(stacked, stacked.T), scales


def _shape(column: Sequence[Any]) -> tuple[int, ...]:
    """The shape of the gradients of one leaf, of which some are missing."""
    return next((x.shape for x in column if x is not None), (0,))


def stitch(value: "Array", inputs: Sequence["Array"], gradients: Sequence["Array"]) -> "Array":
    return _stitch()(value, list(inputs), list(gradients))


@functools.cache
def _stitch() -> Any:
    jax = library()

    @jax.custom_vjp
    def stitched(value: Any, inputs: Any, gradients: Any) -> Any:
        return value

    def forward(value: Any, inputs: Any, gradients: Any) -> Any:
        return value, (value, inputs, gradients)

    def backward(kept: Any, upstream: Any) -> Any:
        value, inputs, gradients = kept
        nothing = jax.tree_util.tree_map(jax.numpy.zeros_like, gradients)
        found = [(upstream * g).astype(x.dtype) for x, g in zip(inputs, gradients, strict=True)]
        return jax.numpy.zeros_like(value), _once(FIRST_ORDER)(found, inputs), nothing

    stitched.defvjp(forward, backward)
    return stitched


def barred(value: "Array", inputs: Sequence["Array"], message: str) -> "Array":
    return _once(message)(value, list(inputs))


@functools.cache
def _once(message: str) -> Any:
    """Arrays that are constants to JAX: differentiating them would silently return 0."""
    jax = library()

    @jax.custom_jvp
    def once(gradients: Any, inputs: Any) -> Any:
        return gradients

    @once.defjvp
    def fail(primals: Any, tangents: Any) -> Any:
        raise GradientError(message)

    return once


def sum_over_rows(fn: Callable[..., "Array"], arrays: Sequence["Array"], size: int) -> "Array":
    jax = library()
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


def block(like: "Array") -> int:
    # As for PyTorch.
    return 2**23 if library().default_backend() == "cpu" else 2**28


def map_rows(fn: Callable[..., "Array"], arrays: Sequence["Array"], size: int) -> "Array":
    jax = library()
    whole = len(arrays[0]) // size
    found: list[Any] = []
    if whole:
        again = jax.checkpoint(fn)
        stacks = [x[: whole * size].reshape(whole, size, *x.shape[1:]) for x in arrays]

        def each(piece: Any) -> Any:
            return again(*piece)

        pieces = jax.lax.map(each, stacks)
        found.append(pieces.reshape(whole * size, *pieces.shape[2:]))
    if len(arrays[0]) > whole * size:
        found.append(jax.checkpoint(fn)(*[x[whole * size :] for x in arrays]))
    return jax.numpy.concatenate(found)
