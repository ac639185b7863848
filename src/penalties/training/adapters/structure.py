"""Adapters on the relation between rows, and on the slope of a function of the log-probabilities."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from ... import functional as f
from ...arrays import ArrayTree
from ...backends import Backend
from ...errors import OptionError
from ...functional.options import check_choice, is_whole
from ...functional.penalty import strict_options
from ...functional.reduction import hide, reduce
from ...pipeline.catalogue import find
from .packing import REDUCTIONS, Columns, Metrics, columns_of, extremes

__all__ = ["gradient_penalty", "orthogonality"]


@strict_options
def orthogonality(
    logprobs: ArrayTree,
    mask: ArrayTree = None,
    *,
    mode: Literal["soft", "hard", "spectral"] = "soft",
    normalize: bool = True,
    axis: Literal["rows", "sequence", "vocabulary"] = "rows",
    reduction: Literal["sum", "mean"] = "sum",
    sample_size: int | None = None,
    seed: Any = 0,
    exact: bool = False,
    iterations: int = 100,
    step: Any = None,
) -> tuple[Any, Metrics]:
    """How far rows are from orthogonal, summed or averaged over the data; see `penalties.orthogonality`.

    In arrays (N, K) every position that counts is a row: candidates, hidden states (`inputs="hidden.1"`), or a mapping
    of matrices (`inputs="params"`). For sampled tokens, (N,), every datum is a row of one matrix, padded with zeros, so
    that a single datum contributes 0. Sampled rows differ at each step. Metrics: `orthogonality`, `orthogonality_max`
    and `orthogonality_min` over the matrices.

    >>> import numpy as np
    >>> value, _ = orthogonality([np.eye(2), np.ones((2, 2))])
    >>> round(float(value), 6)
    2.0
    """
    check_choice("orthogonality", "reduction", reduction, REDUCTIONS)
    batch = columns_of("orthogonality", mask, widths=True, logprobs=logprobs)
    found = [
        f.orthogonality(
            matrix,
            mode=mode,
            normalize=normalize,
            axis=axis,
            reduction=reduction,
            sample_size=sample_size,
            seed=_folded(seed, step, index),
            exact=exact,
            iterations=iterations,
        )
        for index, matrix in enumerate(_matrices(batch))
    ]
    return _over_data(batch.ops, found, reduction, "orthogonality")


@strict_options
def gradient_penalty(
    logprobs: ArrayTree,
    reference: ArrayTree = None,
    mask: ArrayTree = None,
    *,
    fn: Callable[[Any], Any] | str | None = None,
    target_norm: float = 1.0,
    reduction: Literal["sum", "mean"] = "mean",
    seed: Any = 0,
    step: Any = None,
) -> tuple[Any, Metrics]:
    """`(‖∇fn(x)‖ − target_norm)²` for the log-probabilities `x` of each datum; see `penalties.gradient_penalty`.

    `fn` takes one datum's log-probabilities and returns a scalar; it is a function, its path as
    `"package.module:function"`, or None for their sum. It sees 0 at positions that do not count. With a `reference` the
    slope is taken between the two: see `penalties.interpolated_gradient_penalty`; each datum and step has its own draw.
    Metrics: `gradient_penalty`, `gradient_penalty_max` and `gradient_penalty_min` over the data.

    >>> import torch
    >>> value, _ = gradient_penalty([torch.zeros(2), torch.zeros(4)], fn=lambda x: x.sum())
    >>> round(value.item(), 6)
    0.585786
    """
    check_choice("gradient_penalty", "reduction", reduction, REDUCTIONS)
    function = find(fn) if isinstance(fn, str) else fn
    if function is not None and not callable(function):
        raise OptionError("gradient_penalty", "fn", fn, 'a function, "package.module:function", or None for the sum')
    inputs: dict[str, Any] = {"logprobs": logprobs}
    if reference is not None:
        inputs["reference"] = reference
    batch = columns_of("gradient_penalty", mask, widths=False, **inputs)
    ops = batch.ops
    apply: Callable[[Any], Any] = ops.sum if function is None else function
    found: list[Any] = []
    for index, x in enumerate(batch.columns[0]):
        slope = apply if batch.masks is None else partial(_hidden, ops, apply, batch.masks[index])
        if reference is None:
            found.append(f.gradient_penalty(slope, x, target_norm=target_norm))
        else:
            drawn = _folded(seed, step, index)
            other = batch.columns[1][index]
            found.append(f.interpolated_gradient_penalty(slope, x, other, target_norm=target_norm, seed=drawn))
    return _over_data(ops, found, reduction, "gradient_penalty")


def _over_data(ops: Backend, scalars: list[Any], reduction: str, name: str) -> tuple[Any, Metrics]:
    values = ops.concatenate([scalar.reshape(1) for scalar in scalars])
    return reduce(ops, values, reduction), extremes(ops, values, None, name)


def _matrices(batch: Columns) -> list[Any]:
    """The matrices whose rows are compared, without the rows that do not count."""
    ops, matrices, masks = batch.ops, batch.columns[0], batch.masks
    if batch.sampled:
        matrices, mask = batch.stacked()
        masks = None if mask is None else [mask]
    if masks is None:
        return matrices
    counted: list[Any] = []
    for matrix, mask in zip(matrices, masks, strict=True):
        shown = mask != 0 if len(mask.shape) == 1 else ops.any(mask != 0)
        rows = np.flatnonzero(np.asarray(ops.read([shown])[0]))
        counted.append(ops.take(matrix, ops.constant(rows, matrix)))
    return counted


def _hidden(ops: Backend, fn: Callable[[Any], Any], mask: Any, x: Any) -> Any:
    return fn(hide(ops, x, mask))


def _folded(seed: Any, step: Any, index: int) -> Any:
    """A seed for each datum and step, reproducible; a seed that is not an integer is returned as it is."""
    if not is_whole(seed) or seed < 0:
        return seed
    source = np.random.SeedSequence([int(seed), 0 if step is None else int(step), index])
    return int(source.generate_state(1, np.uint64)[0])
