"""The gradient of an expectation from samples: what a score that cannot be differentiated says about probabilities."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..arrays import is_array
from ..backends import owner
from ..errors import InputError, OptionError, ShapeError
from ..pipeline.kinds import described, is_row

__all__ = ["check_unread", "score_gradient"]

_ROUNDING: Final = 0.1
"""How far above 0 the log-probability of a long text may be."""


_READ_BY: Final = {"logprobs": "score", "mask": "straight-through", "relaxed": "straight-through"}


def check_unread(function: str, gradient: str, **inputs: Any) -> None:
    """Raise for an input that is given and that this way to train does not read."""
    for name, value in inputs.items():
        if value is not None and _READ_BY[name] != gradient:
            expected = f'None with gradient="{gradient}": gradient="{_READ_BY[name]}" reads it'
            raise OptionError(function, name, described(value), expected)


def score_gradient(
    function: str,
    losses: "np.ndarray[Any, Any]",
    logprobs: Any,
    *,
    baseline: bool,
    discrete: bool,
    known: Sequence[bool] | None = None,
) -> Any:
    """The gradient `(fᵢ − bᵢ)/n` at the log-probability of each sample, in the structure of `logprobs`.

    Where samples were drawn from the model, its expectation is that of the mean loss (Williams, 1992). The baseline
    `bᵢ` is the mean loss of all other samples: it does not depend on sample i, and so changes only the variance.

    - `losses`: of each sample.
    - `logprobs`: one number for each sample, or an array for each, such as of its tokens, which add up.
    - `discrete`: whether samples are texts or the like, which have probabilities and no densities.
    - `known`: samples that have a loss; the others get no gradient.
    """
    if logprobs is None:
        example = '{"samples": "answers", "logprobs": "logprobs"}'
        raise InputError(f'{function}: gradient="score" needs the log-probabilities of the samples: inputs={example}')
    if discrete:
        _check_logarithms(function, [logprobs] if is_array(logprobs) else logprobs)
    there = np.ones(len(losses), bool) if known is None else np.array(known, bool)
    count = int(there.sum())
    found = np.where(there, losses, 0.0)
    mean = (found.sum() - found) / (count - 1) if baseline and count > 1 else 0.0
    factors = np.where(there, (found - mean) / max(count, 1), 0.0)
    if is_array(logprobs):
        if tuple(logprobs.shape) != losses.shape:
            shape = tuple(logprobs.shape)
            raise ShapeError(
                f"{function}: logprobs has shape {shape} for {len(losses)} samples; expected a number for each, or a "
                "list of arrays, one for the tokens of each"
            )
        return factors
    if not is_row(logprobs) or len(logprobs) != len(losses) or not all(is_array(one) for one in logprobs):
        raise ShapeError(f"{function}: expected logprobs as an array, or a list of arrays, for {len(losses)} samples")
    return [np.full(tuple(one.shape), factor) for one, factor in zip(logprobs, factors, strict=True)]


def _check_logarithms(function: str, logprobs: Any) -> None:
    """Raise for probabilities, and for losses: with these, training would go the other way."""
    rows: list[Any] = [one for one in logprobs if is_array(one)] if is_row(logprobs) else []
    ops = owner(rows[0]) if rows else None
    fixed = [] if ops is None else [ops.stop_gradient(one) for one in rows if owner(one) is ops]
    if ops is None or any(ops.tracing(one) for one in fixed):
        return
    # One transfer.
    highest = max(float(np.max(one, initial=-np.inf)) for one in ops.read(fixed))
    if highest > _ROUNDING:
        expected = "log-probabilities, which are at most 0: neither probabilities nor a cross-entropy"
        raise OptionError(function, "logprobs", round(highest, 6), expected)
