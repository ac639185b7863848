"""Helpers that make and check log-probabilities."""

import math

from ..arrays import ArrayT
from ..backends import backend_of
from ..errors import ShapeError
from .penalty import strict_options

__all__ = ["renormalize", "safe_log", "valid_logprobs"]


@strict_options
def renormalize(logprobs: ArrayT) -> ArrayT:
    """Log-probabilities that sum to one over the last axis: `x − log Σ eˣ`.

    For a top-K slice, whose probabilities sum to less than one, before a divergence. Entries of −inf stay −inf.

    - `logprobs`: log-probabilities, or any scores, over the last axis.

    >>> import numpy as np
    >>> np.exp(renormalize(np.log([0.3, 0.1]))).round(6).tolist()
    [0.75, 0.25]
    """
    ops = backend_of("renormalize", logprobs=logprobs)
    if len(logprobs.shape) == 0:
        raise ShapeError("renormalize: logprobs is a scalar; expected log-probabilities over the last axis")
    return ops.log_softmax(ops.upcast("renormalize", logprobs))


@strict_options
def safe_log(p: ArrayT) -> ArrayT:
    """`log p`, with −inf and gradient 0 where p = 0.

    The plain logarithm has an infinite gradient there, which turns into NaN in every divergence of probabilities with
    a zero. A negative p gives NaN.

    - `p`: probabilities.

    >>> import numpy as np
    >>> safe_log(np.array([1.0, 0.0])).tolist()
    [0.0, -inf]
    """
    ops = backend_of("safe_log", p=p)
    x = ops.upcast("safe_log", p)
    zero = x == 0
    return ops.where(zero, -math.inf, ops.log(ops.where(zero, 1.0, x)))


@strict_options
def valid_logprobs(logprobs: ArrayT) -> ArrayT:
    """Which rows can be a distribution: no NaN, no +inf, not everything −inf. A bool per position, fit for `mask`.

    - `logprobs`: log-probabilities over the last axis.

    >>> import numpy as np
    >>> valid_logprobs(np.log([[0.5, 0.5], [0.5, np.nan]])).tolist()
    [True, False]
    """
    ops = backend_of("valid_logprobs", logprobs=logprobs)
    if len(logprobs.shape) == 0:
        raise ShapeError("valid_logprobs: logprobs is a scalar; expected log-probabilities over the last axis")
    x = ops.upcast("valid_logprobs", logprobs)
    broken = (x != x) | (x == math.inf)
    return ops.any(x > -math.inf) & ~ops.any(broken)
