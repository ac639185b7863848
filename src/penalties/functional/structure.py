"""Penalties on how arrays relate: orthogonality of rows, consistency of pairs."""

import math
from typing import Any, Final, Literal

from ..arrays import ArrayT, Reduction
from ..backends import Backend, backend_of
from ..errors import OptionError, ShapeError
from . import examples
from .divergences import symmetric_kl
from .options import check_choice, check_count, check_flag, check_same_shape
from .penalty import penalty
from .randomness import check_seed, draw_rows
from .reduction import REDUCTIONS, check_mask, hide, reduce
from .vectors import norm, unit

__all__ = ["consistency", "orthogonality"]

_ITERATIONS: Final = 100
_GOLDEN: Final = (1 + math.sqrt(5)) / 2


@penalty(
    rows=True,
    classes=True,
    distribution_with={"metric": "kl"},
    elements={"metric": ("mse", "l1")},
    example=examples.pair,
    config='weight = 0.1\ninputs = ["logprobs", "perturbed"]',
)
def consistency(
    a: ArrayT,
    b: ArrayT,
    *,
    metric: Literal["mse", "l1", "cosine", "kl"] = "mse",
    reduction: Reduction = "mean",
    mask: ArrayT | None = None,
) -> ArrayT:
    """The distance between two arrays of the same shape: predictions for clean and noisy inputs, student and teacher.

    - `a`, `b`: two arrays of one shape; log-probabilities over the last axis where `metric="kl"`.
    - `metric`: "mse" is `(a − b)²` and "l1" is `|a − b|`, per element. "cosine" is `1 − cos(a, b)` per vector of the
      last axis, and 1 with gradient 0 where one of them is zero. "kl" is the symmetric KL divergence per vector.
    - `reduction`: "mean" or "sum" over all elements or vectors, or "none" for a value of each.
    - `mask`: which vectors of the last axis count, as flags or weights, in the shape of `a` without that axis.

    >>> import numpy as np
    >>> float(consistency(np.array([1.0, 2.0]), np.array([2.0, 4.0])))
    2.5
    """
    check_choice("consistency", "metric", metric, ("mse", "l1", "cosine", "kl"))
    check_choice("consistency", "reduction", reduction, REDUCTIONS)
    ops = backend_of("consistency", a=a, b=b, mask=mask)
    check_same_shape("consistency", a=a, b=b)
    shape = tuple(a.shape)
    if not shape and (metric == "kl" or mask is not None):
        needed = 'metric="kl"' if metric == "kl" else "a mask"
        raise ShapeError(f"consistency: a is a scalar; {needed} needs a last axis")
    rows = check_mask("consistency", ops, mask, shape[:-1], "the shape of a without its last axis")
    x = hide(ops, ops.upcast("consistency", a), rows)
    y = hide(ops, ops.upcast("consistency", b), rows)
    if metric == "cosine":
        return reduce(ops, _cosine_distance(ops, x, y), reduction, rows)
    if metric == "kl":
        return reduce(ops, symmetric_kl(ops, x, y), reduction, rows)
    values = ops.square(x - y) if metric == "mse" else ops.abs(x - y)
    if rows is None:
        return reduce(ops, values, reduction)
    if reduction == "none":
        return ops.cast(rows, values)[..., None] * values
    per_row = ops.sum(values, -1)
    return reduce(ops, per_row / max(shape[-1], 1) if reduction == "mean" else per_row, reduction, rows)


@penalty(
    draws=True,
    example=examples.matrix,
    config='weight = 1e-3\ninputs = "flat_hidden.1"\noptions = { sample_size = 64 }',
)
def orthogonality(
    x: ArrayT,
    *,
    mode: Literal["soft", "hard", "spectral"] = "soft",
    normalize: bool = True,
    axis: Literal["rows", "sequence", "vocabulary"] = "rows",
    reduction: Literal["sum", "mean"] = "sum",
    sample_size: int | None = None,
    seed: Any = 0,
    exact: bool = False,
    iterations: int = _ITERATIONS,
) -> ArrayT:
    """How far the rows of a matrix M are from orthogonal, by their Gram matrix `G = MMᵀ`.

    With more rows than columns nothing larger than columns × columns is built.

    - `x`: an array; one of rank 1 is a single row.
    - `mode`: "soft" is `Σ_{i≠j} G²`, "hard" is `‖G − I‖²`. "spectral" is the largest `|σ² − 1|` over the singular
      values (Bansal et al., 2018), by power iteration, whose gradient is of first order only.
    - `normalize`: divide rows by their lengths first; a zero row stays zero and has gradient 0.
    - `axis`: what a row is: every vector of the last axis ("rows"), one position of the second to last axis
      ("sequence"), or one entry of the last axis ("vocabulary").
    - `reduction`: "sum", or "mean" to divide by the number of entries that are added.
    - `sample_size`: take that many rows at random, scaled so that the result is right on average. None takes all.
    - `seed`: what to draw from: a whole number (the same draw each call), a `torch.Generator`, a JAX key, or the array
      of row numbers itself.
    - `exact`: compute "spectral" from all singular values.
    - `iterations`: how many times power iteration applies the matrix, twice each.

    >>> import numpy as np
    >>> float(orthogonality(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])))
    2.0
    """
    name = "orthogonality"
    check_choice(name, "mode", mode, ("soft", "hard", "spectral"))
    check_flag(name, "normalize", normalize)
    check_choice(name, "axis", axis, ("rows", "sequence", "vocabulary"))
    check_choice(name, "reduction", reduction, ("sum", "mean"))
    check_flag(name, "exact", exact)
    check_count(name, "iterations", iterations, 1)
    if sample_size is not None:
        check_count(name, "sample_size", sample_size, 2)
    if mode == "spectral":
        if reduction != "sum":
            raise OptionError(name, "reduction", reduction, '"sum": mode="spectral" is one number')
        if sample_size is not None:
            raise OptionError(name, "sample_size", sample_size, 'None: mode="spectral" needs every row')
    elif exact:
        raise OptionError(name, "exact", exact, f'False: it belongs to mode="spectral", not mode="{mode}"')
    if iterations != _ITERATIONS and (mode != "spectral" or exact):
        raise OptionError(name, "iterations", iterations, 'the default, unless mode="spectral" and exact=False')

    ops = backend_of(name, x=x)
    matrix = ops.upcast(name, _matrix(ops, x, axis))
    total = matrix.shape[0]
    check_seed(name, ops, seed)
    if sample_size is not None and sample_size < total:
        matrix = ops.take(matrix, draw_rows(name, ops, seed, total, sample_size, matrix))
    if normalize:
        matrix, _ = unit(ops, matrix)
    if mode == "spectral":
        return _spectral(ops, matrix, exact, iterations)
    value = _soft(ops, matrix, total) if mode == "soft" else _hard(ops, matrix, total)
    if reduction == "sum":
        return value
    return value / max(total * (total - 1) if mode == "soft" else total * total, 1)


def _cosine_distance(ops: Backend, a: Any, b: Any) -> Any:
    if len(a.shape) == 0:
        a, b = a.reshape(1), b.reshape(1)
    a, a_zero = unit(ops, a)
    b, b_zero = unit(ops, b)
    # ½|a − b|² = 1 − cos for unit vectors, and keeps its digits where the two are close.
    return ops.where(a_zero | b_zero, 1.0, 0.5 * ops.sum(ops.square(a - b), -1))


def _matrix(ops: Backend, x: Any, axis: str) -> Any:
    rank = len(x.shape)
    if rank == 0:
        raise ShapeError("orthogonality: x is a scalar; expected at least one axis")
    if rank == 1:
        return x.reshape(1, -1)
    if axis == "rows":
        width = x.shape[-1]
        return x.reshape(math.prod(x.shape[:-1]), width)
    moved = ops.moveaxis(x, -2 if axis == "sequence" else -1, 0)
    return moved.reshape(moved.shape[0], math.prod(moved.shape[1:]))


def _soft(ops: Backend, matrix: Any, total: int) -> Any:
    """Off-diagonal part of the Gram matrix, scaled up from the sampled rows to all."""
    rows, columns = matrix.shape
    if rows <= columns:
        gram = ops.matmul(matrix, matrix.T)
        value = ops.sum(ops.square(ops.where(ops.eye(rows, matrix) == 1, 0.0, gram)))
    else:
        inner = ops.matmul(matrix.T, matrix)
        lengths = ops.sum(ops.square(matrix), -1)
        value = ops.sum(ops.square(inner)) - ops.sum(ops.square(lengths))
        # Rounding, of the order of the rows' fourth powers, may leave it below 0; the gradient is right all the same.
        value = value + ops.clip(ops.stop_gradient(-value), 0.0, None)
    if rows == total:
        return value
    return value * (total * (total - 1) / (rows * (rows - 1)))


def _hard(ops: Backend, matrix: Any, total: int) -> Any:
    """`‖G − I‖²`; from a sample, its off-diagonal and diagonal parts scaled up apart."""
    rows, columns = matrix.shape
    if rows < total:
        diagonal = ops.sum(ops.square(ops.sum(ops.square(matrix), -1) - 1.0))
        return _soft(ops, matrix, total) + diagonal * (total / rows)
    if rows <= columns:
        return ops.sum(ops.square(ops.matmul(matrix, matrix.T) - ops.eye(rows, matrix)))
    # MMᵀ has the eigenvalues of MᵀM, and rows − columns zeros.
    return ops.sum(ops.square(ops.matmul(matrix.T, matrix) - ops.eye(columns, matrix))) + float(rows - columns)


def _spectral(ops: Backend, matrix: Any, exact: bool, iterations: int) -> Any:
    size = min(matrix.shape)
    if size == 0:
        return ops.sum(matrix)
    if exact:
        # A decomposition raises on NaN and infinity where everything else here lets them through.
        finite = (matrix > -math.inf) & (matrix < math.inf)
        values = ops.svdvals(ops.where(finite, matrix, 0.0))
        return ops.where(ops.sum(~finite) == 0, ops.amax(ops.abs(ops.square(values) - 1.0)), math.nan)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    fixed = ops.stop_gradient(matrix)
    deviation = ops.matmul(fixed, fixed.T) - ops.eye(size, fixed)
    # A fixed start without symmetry, multiples of the golden ratio: hardly any eigenvector is orthogonal to it.
    start = 0.5 + (_GOLDEN * ops.arange(size, fixed)) % 1.0
    vector, _ = unit(ops, ops.power_iteration(deviation, start, iterations))
    return norm(ops, ops.matmul(matrix, ops.matmul(matrix.T, vector)) - vector)
