"""The gradient of an expectation from samples: what a score that nobody can differentiate says about probabilities."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import is_array
from ..errors import InputError, ShapeError
from ..pipeline.kinds import is_row

__all__ = ["score_gradient"]


def score_gradient(
    function: str, losses: "np.ndarray[Any, Any]", logprobs: Any, *, baseline: bool, known: Sequence[bool] | None = None
) -> Any:
    """The gradient `(fᵢ − bᵢ)/n` at the log-probability of each sample, in the structure of `logprobs`.

    Where samples were drawn from the model, its expectation is that of the mean loss (Williams, 1992). The baseline
    `bᵢ` is the mean loss of all other samples: it does not depend on sample i, and so changes only the variance.

    - `losses`: of each sample.
    - `logprobs`: one number for each sample, or an array for each, such as of its tokens, which add up.
    - `known`: samples that have a loss; the others get no gradient.
    """
    if logprobs is None:
        example = '{"samples": "answers", "logprobs": "logprobs"}'
        raise InputError(f'{function}: gradient="score" needs the log-probabilities of the samples: inputs={example}')
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
