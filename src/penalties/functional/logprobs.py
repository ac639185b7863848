"""Helpers that make, pick and check log-probabilities."""

import math
from typing import Any

from ..arrays import ArrayT, Logits
from ..backends import backend_of
from ..errors import OptionError, ShapeError
from .blocks import rows_of
from .penalty import strict_options
from .picking import check_classes, picked

__all__ = ["renormalize", "safe_log", "target_logprobs", "valid_logprobs"]


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
def target_logprobs(p: ArrayT, targets: ArrayT, *, temperature: float = 1.0, logits: bool = False) -> ArrayT:
    """The log-probabilities of targets: `log p[target]` for each position.

    From logits it is what TRL calls `selective_log_softmax`. It is named for what it returns, since with
    log-probabilities no softmax is taken. In PyTorch no other array of the size of `p` is made, but for its gradient.

    A target that is not a class is an `OptionError`; on a GPU, inside a compiler and in JAX it is NaN.

    - `p`: **log-probabilities** over the last axis; not probabilities. `logits=True` takes logits.
    - `targets`: whole numbers, in the shape of `p` without its last axis, or with K for it: K targets per position.
    - `temperature`: T ≠ 1 takes log_softmax(p/T) first.
    - `logits`: `p` holds unnormalised scores, and log_softmax is taken of it.

    >>> import numpy as np
    >>> p = np.log([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25]])
    >>> np.exp(target_logprobs(p, np.array([0, 2]))).round(6).tolist()
    [0.7, 0.25]
    """
    lazy: Any = p
    if isinstance(lazy, Logits):
        if not logits and temperature == 1:
            raise OptionError("target_logprobs", "logits", logits, "True: Logits are unnormalised scores")
        ops = backend_of("target_logprobs", p=lazy.hidden, targets=targets)
        given = {"p": lazy, "targets": targets, "logits": logits, "temperature": temperature}
        return rows_of(ops, tuple(lazy.shape[:-1]), given, target_logprobs)
    ops = backend_of("target_logprobs", p=p, targets=targets)
    check_classes("target_logprobs", p)
    index = ops.indices("target_logprobs", "targets", targets)
    positions, shape = tuple(p.shape[:-1]), tuple(index.shape)
    several = len(shape) == len(p.shape) and shape[:-1] == positions
    if shape != positions and not several:
        raise ShapeError(
            f"target_logprobs: targets has shape {shape}; expected {positions}, the shape of p without its last axis, "
            "or that with one more axis"
        )
    index = index if several else index[..., None]
    found = picked("target_logprobs", ops, p, index, logits=logits, temperature=temperature)
    return found if several else found[..., 0]


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
