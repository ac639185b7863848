"""Predictions that are as often positive in one group as in another."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...functional.options import check_choice, check_count
from ...functional.penalty import strict_options
from .gaps import VIOLATIONS, Violation, gap, seen, violation_of
from .members import Batch, Rates, batch_of, rates
from .significance import p_value

__all__ = ["demographic_parity", "equal_opportunity", "equalized_odds"]


class _Stratum(NamedTuple):
    """Rows among which groups are compared."""

    rate: str
    """What the mean prediction among them is called."""
    size: str
    """What they are called."""
    weights: Any


@strict_options
def demographic_parity(
    p: Any,
    groups: Any,
    *,
    violation: Violation = "max",
    count: int | None = None,
    logits: bool = False,
    mask: Any = None,
    permutations: int = 0,
    seed: int = 0,
) -> tuple[Any, dict[str, Any]]:
    """How unequal the mean prediction is between groups, and metrics; differentiable.

    A group without rows in the batch is left out. With fewer than two there is no evidence: the value is 0, and so is
    the metric `evidence`.

    Metrics: `gap`, the largest difference between two groups; `groups`, how many have rows; `evidence`, 1 or 0; for
    each group `rate/0`, its mean prediction, −1 without rows, and `size/0`, how many rows it has, by their weights.
    With `permutations`, `p_value`: how likely as large a gap is if groups do not matter. It is left out where values
    cannot be looked at, inside `jax.jit` and `torch.compile`.

    - `p`: probabilities of the positive class, (…).
    - `groups`: the number of each row's group, (…), or how much it is of each group, (…, groups).
    - `violation`: "max" is the largest difference between two groups. With the differences from the rate of all rows,
      "mean" is their mean size, "norm" their length, and "relative" their mean size by that rate. "ratio" is
      `1 − smallest / largest`.
    - `count`: the number of groups; None takes the largest label. On a GPU, in JAX and inside a compiler it is needed.
    - `logits`: `p` holds log-odds, and their sigmoid is taken.
    - `mask`: which rows count, as flags or weights, in the shape of `p`.
    - `permutations`: of how many the p-value is made; 0 leaves it out.
    - `seed`: a whole number that they are drawn from.

    >>> import numpy as np
    >>> value, metrics = demographic_parity(np.array([0.9, 0.7, 0.4, 0.2]), np.array([0, 0, 1, 1]))
    >>> round(float(value), 6), round(float(metrics["rate/0"]), 6)
    (0.5, 0.8)
    """
    batch = batch_of("demographic_parity", p, None, groups, count=count, logits=logits, mask=mask)
    strata = [_Stratum("rate", "size", batch.weights)]
    return _compared("demographic_parity", batch, strata, violation, permutations, seed)


@strict_options
def equal_opportunity(
    p: Any,
    labels: Any,
    groups: Any,
    *,
    violation: Violation = "max",
    count: int | None = None,
    logits: bool = False,
    mask: Any = None,
    permutations: int = 0,
    seed: int = 0,
) -> tuple[Any, dict[str, Any]]:
    """How unequal the mean prediction is between groups among the rows whose label is 1 (Hardt et al., 2016).

    As `demographic_parity`; metrics have `true_positive/0` and `positives/0` for each group instead of rates and sizes.

    - `p`: probabilities of the positive class, (…).
    - `labels`: 0 or 1, (…).
    - `groups`: the number of each row's group, (…), or how much it is of each group, (…, groups).
    - `violation`, `count`, `logits`, `mask`, `permutations`, `seed`: as for `demographic_parity`. Permutations are
      among rows of label 1.

    >>> import numpy as np
    >>> p, labels = np.array([0.9, 0.7, 0.4, 0.2]), np.array([1, 0, 1, 0])
    >>> value, metrics = equal_opportunity(p, labels, np.array([0, 0, 1, 1]))
    >>> round(float(value), 6), float(metrics["positives/1"])
    (0.5, 1.0)
    """
    batch = batch_of("equal_opportunity", p, labels, groups, count=count, logits=logits, mask=mask)
    strata = [_Stratum("true_positive", "positives", batch.weights * batch.labels)]
    return _compared("equal_opportunity", batch, strata, violation, permutations, seed)


@strict_options
def equalized_odds(
    p: Any,
    labels: Any,
    groups: Any,
    *,
    violation: Violation = "max",
    count: int | None = None,
    logits: bool = False,
    mask: Any = None,
    permutations: int = 0,
    seed: int = 0,
) -> tuple[Any, dict[str, Any]]:
    """How unequal the mean prediction is between groups, among rows of label 1 and among rows of label 0.

    The mean of both; a label without two groups that have rows is left out, and `evidence` is the fraction of labels
    that are not. Metrics are as for `demographic_parity`, with `true_positive/0`, `false_positive/0`, `positives/0` and
    `negatives/0` for each group. `gap` is the larger of both, and `groups` how many have rows of both labels at least.

    - `p`: probabilities of the positive class, (…).
    - `labels`: 0 or 1, (…).
    - `groups`: the number of each row's group, (…), or how much it is of each group, (…, groups).
    - `violation`, `count`, `logits`, `mask`, `permutations`, `seed`: as for `demographic_parity`. Permutations are
      among rows of one label.

    >>> import numpy as np
    >>> p, labels = np.array([0.9, 0.7, 0.4, 0.2]), np.array([1, 0, 1, 0])
    >>> value, metrics = equalized_odds(p, labels, np.array([0, 0, 1, 1]))
    >>> round(float(value), 6), float(metrics["evidence"])
    (0.5, 1.0)
    """
    batch = batch_of("equalized_odds", p, labels, groups, count=count, logits=logits, mask=mask)
    strata = [
        _Stratum("true_positive", "positives", batch.weights * batch.labels),
        _Stratum("false_positive", "negatives", batch.weights * (1 - batch.labels)),
    ]
    return _compared("equalized_odds", batch, strata, violation, permutations, seed)


def _compared(
    function: str, batch: Batch, strata: Sequence[_Stratum], violation: Violation, permutations: int, seed: int
) -> tuple[Any, dict[str, Any]]:
    check_choice(function, "violation", violation, VIOLATIONS)
    check_count(function, "permutations", permutations, 0)
    check_count(function, "seed", seed, 0)
    ops = batch.ops
    found = [rates(batch, batch.p, stratum.weights) for stratum in strata]
    numbers = [seen(ops, one) for one in found]
    evidence: Any = sum([ops.cast(number > 1, number) for number in numbers])
    value: Any = sum([violation_of(ops, one, violation) for one in found])
    value = value / ops.where(evidence == 0, 1.0, evidence)
    largest, fewest = gap(ops, found[0]), numbers[0]
    for one, number in zip(found[1:], numbers[1:], strict=True):
        other = gap(ops, one)
        largest = ops.where(other > largest, other, largest)
        fewest = ops.where(number < fewest, number, fewest)
    metrics: dict[str, Any] = {"gap": largest, "groups": fewest, "evidence": evidence / len(strata)}
    for stratum, one in zip(strata, found, strict=True):
        metrics |= _by_group(ops, stratum, one)
    if permutations and not ops.tracing(ops.stop_gradient(batch.p)):
        metrics["p_value"] = _p_value(batch, strata, permutations, seed)
    return value, {name: x if isinstance(x, float) else ops.stop_gradient(x) for name, x in metrics.items()}


def _by_group(ops: Any, stratum: _Stratum, one: Rates) -> dict[str, Any]:
    shown = ops.where(one.present, one.of, -1.0)
    metrics = {f"{stratum.rate}/{number}": shown[number] for number in range(one.of.shape[0])}
    return metrics | {f"{stratum.size}/{number}": one.sizes[number] for number in range(one.of.shape[0])}


def _p_value(batch: Batch, strata: Sequence[_Stratum], permutations: int, seed: int) -> float:
    constants = [batch.ops.stop_gradient(x) for x in (batch.p, batch.members, *[s.weights for s in strata])]
    p, members, *weights = (np.asarray(x, np.float64) for x in batch.ops.read(constants))
    # Rows that do not count stay among themselves.
    index = sum((number + 1) * (w > 0) for number, w in enumerate(weights))

    def largest_gap(dealt: Any) -> Any:
        gaps: list[Any] = []
        for w in weights:
            sizes = np.einsum("n,kng->kg", w, dealt)
            means = np.einsum("n,kng->kg", w * p, dealt) / np.where(sizes > 0, sizes, 1.0)
            top = np.where(sizes > 0, means, 0.0).max(-1)
            gaps.append(np.where((sizes > 0).sum(-1) > 1, top - np.where(sizes > 0, means, 1.0).min(-1), 0.0))
        return np.max(gaps, axis=0)

    return p_value(largest_gap, members, index, permutations=permutations, seed=seed)
