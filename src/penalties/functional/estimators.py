"""Divergence and entropy from the log-probabilities of *sampled tokens*.

A training client returns one log-probability per sampled token. Such a vector is not a distribution, so the divergences
of `divergences.py` do not apply to it; these estimators average over the samples instead (Schulman, "Approximating KL
divergence", 2020).
"""

from typing import Any, Literal, overload

from ..arrays import ArrayT, ArrayTree, Reduction
from ..backends import Backend
from . import examples
from .nests import gather
from .options import check_choice
from .penalty import penalty
from .reduction import REDUCTIONS, hide, reduce, weighted_mean

__all__ = ["entropy_estimate", "kl_estimate"]


@overload
def kl_estimate(
    logprobs: ArrayT,
    reference: ArrayT,
    *,
    estimator: Literal["k1", "k2", "k3"] = ...,
    mask: ArrayT | None = ...,
    reduction: Reduction = ...,
) -> ArrayT: ...
@overload
def kl_estimate(
    logprobs: ArrayTree,
    reference: ArrayTree,
    *,
    estimator: Literal["k1", "k2", "k3"] = ...,
    mask: ArrayTree = ...,
    reduction: Reduction = ...,
) -> Any: ...
@penalty(
    rows=True,
    estimates="kl",
    example=examples.two_sampled,
    config="""weight = 0.05
inputs = ["logprobs", "initial"]
schedule = { kind = "warmup", steps = 20 }""",
)
def kl_estimate(
    logprobs: ArrayTree,
    reference: ArrayTree,
    *,
    estimator: Literal["k1", "k2", "k3"] = "k3",
    mask: ArrayTree = None,
    reduction: Reduction = "mean",
) -> Any:
    """KL(policy ‖ reference) from tokens sampled by the policy.

    With `d = reference − logprobs`: k1 = −d (unbiased, any sign), k2 = ½d² (low variance, biased) and
    k3 = e^d − 1 − d (unbiased, never negative). The gradients with respect to `logprobs` are 1, −d and 1 − e^d. As a
    loss on the policy's own samples k2 has the gradient of this KL, k3 that of KL(reference ‖ policy), and k1 none on
    average: it is a measurement.

    - `logprobs`: log-probability of each sampled token under the policy; an array, or a nest such as one array per
      sequence. Not a distribution: for one see `kl_divergence`.
    - `reference`: log-probability of the same tokens under the reference, in the same structure and shapes.
    - `estimator`: "k1", "k2" or "k3".
    - `mask`: which tokens count, as flags or weights, in the structure and shapes of `logprobs`.
    - `reduction`: "mean" or "sum" over all tokens, or "none" for a value per token.

    >>> import numpy as np
    >>> policy, reference = np.log([0.5, 0.2]), np.log([0.4, 0.4])
    >>> round(float(kl_estimate(policy, reference)), 6)
    0.164998
    """
    check_choice("kl_estimate", "estimator", estimator, ("k1", "k2", "k3"))

    def values(ops: Backend, policy: Any, other: Any) -> Any:
        if estimator == "k1":
            return policy - other
        difference = other - policy
        if estimator == "k2":
            return 0.5 * ops.square(difference)
        return ops.expm1(difference) - difference

    return _estimate("kl_estimate", values, reduction, mask, logprobs=logprobs, reference=reference)


@overload
def entropy_estimate(
    logprobs: ArrayT,
    *,
    mode: Literal["penalty", "bonus"] = ...,
    mask: ArrayT | None = ...,
    reduction: Reduction = ...,
) -> ArrayT: ...
@overload
def entropy_estimate(
    logprobs: ArrayTree,
    *,
    mode: Literal["penalty", "bonus"] = ...,
    mask: ArrayTree = ...,
    reduction: Reduction = ...,
) -> Any: ...
@penalty(
    rows=True,
    estimates="entropy",
    example=examples.sampled,
    config='weight = 0.01\ninputs = "logprobs"\noptions = { mode = "bonus" }',
)
def entropy_estimate(
    logprobs: ArrayTree,
    *,
    mode: Literal["penalty", "bonus"] = "penalty",
    mask: ArrayTree = None,
    reduction: Reduction = "mean",
) -> Any:
    """Entropy of the policy from tokens it sampled: the mean of `−logprobs`.

    The gradient is −1 per token, or +1 as a bonus. On tokens of a fixed data set the bonus lowers their probability and
    so flattens the policy; on the policy's own samples the gradient is 0 on average, as for k1 of `kl_estimate`.

    - `logprobs`: log-probability of each sampled token under the policy; an array, or a nest such as one array per
      sequence. Not a distribution: for one see `entropy`.
    - `mode`: "penalty" returns +H, which lowers entropy; "bonus" returns −H, which raises it.
    - `mask`: which tokens count, as flags or weights, in the structure and shapes of `logprobs`.
    - `reduction`: "mean" or "sum" over all tokens, or "none" for a value per token.

    >>> import numpy as np
    >>> round(float(entropy_estimate(np.log([0.5, 0.25]))), 6)
    1.039721
    """
    check_choice("entropy_estimate", "mode", mode, ("penalty", "bonus"))

    def values(ops: Backend, policy: Any) -> Any:
        return -policy if mode == "penalty" else policy

    return _estimate("entropy_estimate", values, reduction, mask, logprobs=logprobs)


def _estimate(function: str, values: Any, reduction: str, mask: Any, **inputs: Any) -> Any:
    check_choice(function, "reduction", reduction, REDUCTIONS)
    leaves = gather(function, keep=reduction == "none", **inputs, mask=mask)
    ops = leaves.ops

    def plain(*arrays: Any) -> Any:
        *visible, how = arrays
        return reduce(ops, values(ops, *visible), how)

    def masked(*arrays: Any) -> Any:
        *visible, m, how = arrays
        return reduce(ops, ops.cast(m, visible[0]) * values(ops, *[hide(ops, array, m) for array in visible]), how)

    def weight(*arrays: Any) -> Any:
        *visible, m, how = arrays
        return reduce(ops, ops.cast(m, visible[0]), how)

    if mask is None:
        return leaves.reduce(plain, reduction)
    if reduction != "mean":
        return leaves.reduce(masked, reduction)
    # Not a mean of means: the weights are those of all leaves.
    return weighted_mean(ops, leaves.reduce(masked, "sum"), leaves.reduce(weight, "sum"))
