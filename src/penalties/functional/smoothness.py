"""Penalties on how fast a function changes, and on how large its outputs are."""

import math
from collections.abc import Callable
from typing import Any, Literal, cast

from ..arrays import ArrayT
from ..backends import Backend, backend_of, owner
from ..errors import BackendError, OptionError, ShapeError
from . import examples
from .options import check_choice, check_fits, check_number, check_same_shape
from .penalty import penalty, strict_options
from .randomness import check_seed, draw_uniform
from .vectors import norm

__all__ = ["gradient_penalty", "interpolated_gradient_penalty", "output_magnitude", "with_gradient_penalty"]


@penalty(
    needs_gradient=True,
    example=examples.samples,
    config="# For your own functions; for log-probabilities, see penalties.training.adapters:gradient_penalty.",
)
def gradient_penalty(fn: Callable[[Any], Any], x: ArrayT, *, target_norm: float = 1.0) -> ArrayT:
    """`(‖∇ₓfn(x)‖ − target_norm)²`: keeps a critic or a network close to a chosen slope.

    It can be differentiated again, with gradient 0 where `∇fn` is 0, and costs about one more backward pass. NumPy has
    no automatic differentiation: pass torch or JAX arrays.

    - `fn`: a function of `x`. Where it returns one number per sample, (B,) or (B, 1), norms are per sample and the
      penalties are averaged; where it returns a scalar there is one joint norm.
    - `x`: where the slope is taken, floats; samples along the first axis, and an array of rank 1 is one sample.
    - `target_norm`: the length that the gradient is drawn to, at least 0.

    >>> import torch
    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> gradient_penalty(lambda z: z.sum(), x).item()
    1.0
    """
    return _penalized("gradient_penalty", fn, x, target_norm)[1]


@penalty(
    needs_gradient=True,
    draws=True,
    example=examples.two_samples,
    config="# For your own functions; for log-probabilities, see penalties.training.adapters:gradient_penalty.",
)
def interpolated_gradient_penalty(
    fn: Callable[[Any], Any], x: ArrayT, reference: ArrayT, *, target_norm: float = 1.0, seed: Any = 0
) -> ArrayT:
    """`gradient_penalty` at `ε·x + (1 − ε)·reference`, one ε from [0, 1) per sample (WGAN-GP, Gulrajani et al., 2017).

    - `fn`: a function of samples, as in `gradient_penalty`.
    - `x`, `reference`: two batches of floats with the same shape, such as real and generated samples.
    - `target_norm`: the length that the gradient is drawn to, at least 0.
    - `seed`: what ε is drawn from: a whole number (the same draw each call), a `torch.Generator`, a JAX key, or the
      array of ε itself.

    >>> import torch
    >>> real, fake = torch.ones(2, 4), torch.zeros(2, 4)
    >>> interpolated_gradient_penalty(lambda z: z.sum(-1), real, fake).item()
    1.0
    """
    name = "interpolated_gradient_penalty"
    ops = _backend(name, x=x, reference=reference)
    check_same_shape(name, x=x, reference=reference)
    shape = tuple(x.shape)
    samples = shape[0] if len(shape) > 1 else 1
    check_seed(name, ops, seed)
    epsilon = draw_uniform(name, ops, seed, samples, x)
    epsilon = epsilon.reshape((samples,) + (1,) * (len(shape) - 1)) if len(shape) > 1 else epsilon.reshape(())
    epsilon = ops.cast(epsilon, x)
    point: Any = epsilon * x + (1 - epsilon) * reference
    return _penalized(name, fn, point, target_norm)[1]


@strict_options
def with_gradient_penalty(fn: Callable[[Any], Any], x: ArrayT, *, target_norm: float = 1.0) -> tuple[ArrayT, ArrayT]:
    """`(fn(x), gradient_penalty(fn, x))` from one evaluation of `fn`.

    - `fn`, `x`, `target_norm`: as in `gradient_penalty`.

    >>> import torch
    >>> output, penalty = with_gradient_penalty(lambda z: (z * z).sum(), torch.tensor([1.0, 2.0]))
    >>> output.item(), round(penalty.item(), 4)
    (5.0, 12.0557)
    """
    return _penalized("with_gradient_penalty", fn, x, target_norm)


@penalty(
    example=examples.matrix,
    config='weight = 1e-2\ninputs = "flat_logits"\noptions = { target = 1.0 }',
)
def output_magnitude(y: ArrayT, *, target: float = 1.0, reduction: Literal["mean", "sum"] = "mean") -> ArrayT:
    """`(RMS(y) − target)²`, or with `reduction="sum"` `(‖y‖ − target)²`: keeps outputs at a chosen size.

    A cheap stand-in for `gradient_penalty`: it needs no second backward pass. The gradient at `y = 0` is 0.

    - `y`: an array of any shape.
    - `target`: the size to keep it at, at least 0.
    - `reduction`: "mean" compares the root mean square of all elements, "sum" their Euclidean length.

    >>> import numpy as np
    >>> float(output_magnitude(np.array([3.0, 4.0]), reduction="sum"))
    16.0
    """
    target = check_number("output_magnitude", "target", target, "a finite number of at least 0", low=0)
    check_choice("output_magnitude", "reduction", reduction, ("mean", "sum"))
    ops = backend_of("output_magnitude", y=y)
    length = norm(ops, ops.upcast("output_magnitude", y).reshape(-1))
    check_fits("output_magnitude", "target", target, ops, length)
    if reduction == "mean":
        length = length / math.sqrt(max(math.prod(y.shape), 1))
    return ops.square(length - target)


def _penalized(name: str, fn: Callable[[Any], Any], x: Any, target_norm: float) -> tuple[Any, Any]:
    target = check_number(name, "target_norm", target_norm, "a finite number of at least 0", low=0)
    if not callable(cast("object", fn)):
        given = "an array" if owner(fn) else fn
        raise OptionError(name, "fn", given, "a function, followed by the array at which its gradient is taken")
    ops = _backend(name, x=x)
    shape = tuple(x.shape)

    def checked(point: Any) -> Any:
        value = fn(point)
        _check_output(name, ops, shape, value)
        return value

    value, gradient = ops.value_and_gradient(name, checked, x)
    gradient = ops.upcast(name, gradient)
    check_fits(name, "target_norm", target, ops, gradient)
    if len(shape) > 1 and len(value.shape) > 0:
        lengths = norm(ops, gradient.reshape(shape[0], math.prod(shape[1:])))
        return value, ops.mean(ops.square(lengths - target))
    return value, ops.square(norm(ops, gradient.reshape(-1)) - target)


def _backend(name: str, **arrays: Any) -> Backend:
    """The backend of floats; others have no gradient."""
    ops = backend_of(name, **arrays)
    for key, x in arrays.items():
        if "float" not in str(x.dtype):
            raise BackendError(f"{name}: {key} has dtype {x.dtype}; expected floats, to take a gradient")
    return ops


def _check_output(name: str, ops: Backend, shape: tuple[int, ...], value: Any) -> None:
    if owner(value) is not ops:
        raise BackendError(f"{name}: fn returned a {type(value).__name__}; expected a {ops.LIBRARY} array")
    if "float" not in str(value.dtype):
        raise BackendError(f"{name}: fn returned dtype {value.dtype}; expected floats, to take a gradient")
    given = tuple(value.shape)
    allowed = {(): "()"}
    if len(shape) > 1:
        allowed |= {(shape[0],): f"({shape[0]},)", (shape[0], 1): f"({shape[0]}, 1)"}
    else:
        allowed |= {(1,): "(1,)"}
    if given not in allowed:
        raise ShapeError(
            f"{name}: fn returned shape {given} for x of shape {shape}; expected {' or '.join(allowed.values())}"
        )
