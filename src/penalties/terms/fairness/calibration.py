"""Predictions that mean what they say in every group."""

from typing import Any, Literal

import numpy as np

from ...functional.options import check_choice, check_count
from ...functional.penalty import strict_options
from ...functional.reduction import weighted_mean
from .gaps import gap, seen
from .members import Batch, Rates, batch_of
from .significance import p_value

__all__ = ["calibration"]


@strict_options
def calibration(
    p: Any,
    labels: Any,
    groups: Any,
    *,
    bins: int = 10,
    violation: Literal["max", "mean"] = "max",
    count: int | None = None,
    logits: bool = False,
    mask: Any = None,
    permutations: int = 0,
    seed: int = 0,
) -> tuple[Any, dict[str, Any]]:
    """The calibration error of groups: `Σ |mean p − mean label|` over bins of p, weighted by their rows, in each group.

    Which bin a prediction falls into is held constant; the gradient moves the mean prediction of each bin towards its
    mean label. A group without rows is left out; without any the value is 0, and so is the metric `evidence`.

    Metrics: `gap`, the largest difference between the errors of two groups; `groups`, how many have rows; `evidence`, 1
    or 0; for each group `error/0`, −1 without rows, and `size/0`. With `permutations`, `p_value`: how likely as large a
    gap is if groups do not matter; it is left out inside `jax.jit` and `torch.compile`.

    - `p`: probabilities of the positive class, (…).
    - `labels`: 0 or 1, (…).
    - `groups`: the number of each row's group, (…), or how much it is of each group, (…, groups).
    - `bins`: the number of bins, of equal width.
    - `violation`: "max", the error of the worst group, or "mean" over the groups.
    - `count`, `logits`, `mask`, `permutations`, `seed`: as for `demographic_parity`.

    >>> import numpy as np
    >>> p, labels = np.array([0.75, 0.75, 0.25, 0.25]), np.array([1, 1, 0, 1])
    >>> value, metrics = calibration(p, labels, np.array([0, 0, 1, 1]))
    >>> float(value), float(metrics["error/1"])
    (0.25, 0.25)
    """
    name = "calibration"
    check_choice(name, "violation", violation, ("max", "mean"))
    check_count(name, "bins", bins, 1)
    check_count(name, "permutations", permutations, 0)
    check_count(name, "seed", seed, 0)
    batch = batch_of(name, p, labels, groups, count=count, logits=logits, mask=mask)
    ops, fixed = batch.ops, batch.ops.stop_gradient(batch.p)[:, None]
    number = ops.arange(bins, batch.p)
    # The first and the last bin are open, so that NaN alone falls into none.
    inside = ((fixed >= number / bins) | (number == 0)) & ((fixed < (number + 1) / bins) | (number == bins - 1))
    surplus = (batch.weights * (batch.p - batch.labels))[:, None] * ops.cast(inside, batch.p)
    sizes = ops.sum(batch.weights[:, None] * batch.members, 0)
    errors = weighted_mean(ops, ops.sum(ops.abs(ops.matmul(batch.members.T, surplus)), -1), sizes)
    found = Rates(errors, sizes, errors)
    there = seen(ops, found)
    value = ops.amax(errors) if violation == "max" else weighted_mean(ops, ops.sum(errors), there)
    metrics = {"gap": gap(ops, found), "groups": there, "evidence": ops.cast(there > 0, there)}
    shown = ops.where(found.present, errors, -1.0)
    for group in range(errors.shape[0]):
        metrics |= {f"error/{group}": shown[group], f"size/{group}": sizes[group]}
    metrics = {key: ops.stop_gradient(x) for key, x in metrics.items()}
    if permutations and not ops.tracing(ops.stop_gradient(batch.p)):
        metrics["p_value"] = _p_value(batch, surplus, permutations, seed)
    return value, metrics


def _p_value(batch: Batch, surplus: Any, permutations: int, seed: int) -> float:
    constants = [batch.ops.stop_gradient(x) for x in (surplus, batch.members, batch.weights)]
    surplus, members, weights = (np.asarray(x, np.float64) for x in batch.ops.read(constants))

    def difference(dealt: Any) -> Any:
        sizes = np.einsum("n,kng->kg", weights, dealt)
        errors = np.abs(np.einsum("nb,kng->kgb", surplus, dealt)).sum(-1) / np.where(sizes > 0, sizes, 1.0)
        there = sizes > 0
        apart = np.where(there, errors, 0.0).max(-1) - np.where(there, errors, 1.0).min(-1)
        return np.where(there.sum(-1) > 1, apart, 0.0)

    return p_value(difference, members, weights > 0, permutations=permutations, seed=seed)
