"""Adapters on distributions at each position: entropy, divergence from a reference, distance from a pair."""

from typing import Any, Final, Literal

from ... import functional as f
from ...arrays import ArrayTree
from ...functional.options import check_choice, check_flag
from ...functional.penalty import strict_options
from ...functional.reduction import reduce
from ..shares import shared
from .packing import REDUCTIONS, Columns, Metrics, columns_of, extremes, reject

__all__ = ["consistency", "entropy", "kl"]

_SAMPLED: Final = (
    "it needs full distributions, but log-probabilities of shape (N,) have one sampled token per position; {}, or pass "
    "target_tokens of shape (N, K)"
)
_CANDIDATES: Final = (
    "it needs one sampled token per position, but log-probabilities of shape (N, K) have K candidates that were not "
    'sampled; use direction="forward", "reverse" or "symmetric"'
)


@shared("mean", metrics={"entropy": "mean", "entropy_max": "max", "entropy_min": "min"})
@strict_options
def entropy(
    logprobs: ArrayTree,
    mask: ArrayTree = None,
    *,
    mode: Literal["penalty", "bonus"] = "penalty",
    reduction: Literal["sum", "mean"] = "mean",
    normalize: bool | None = None,
    temperature: float | None = None,
    renormalize: bool | None = None,
) -> tuple[Any, Metrics]:
    """Entropy at each position: `mode="penalty"` is +H, which lowers it, and `mode="bonus"` is −H, which raises it.

    For sampled tokens, (N,), it is estimated: see `penalties.entropy_estimate`. For K candidates, (N, K), it is exact:
    see `penalties.entropy`, also for `normalize` and `temperature`; the K are renormalised first, unless
    `renormalize=False`. Metrics: `entropy`, `entropy_max` and `entropy_min`, of H over the positions that count.

    >>> import numpy as np
    >>> value, metrics = entropy([np.log(np.full((2, 4), 0.1))], mode="bonus")
    >>> round(float(value), 6), round(float(metrics["entropy"]), 6)
    (-1.386294, 1.386294)
    """
    check_choice("entropy", "mode", mode, ("penalty", "bonus"))
    check_choice("entropy", "reduction", reduction, REDUCTIONS)
    batch = columns_of("entropy", mask, logprobs=logprobs)
    ops = batch.ops
    if batch.sampled:
        why = _SAMPLED.format("omit it to estimate the entropy")
        reject("entropy", why, normalize=normalize, temperature=temperature, renormalize=renormalize)
        (x,), mask = batch.flat()
        values = f.entropy_estimate(x, reduction="none")
    else:
        (x,), mask = batch.rows()
        x = _renormalized("entropy", renormalize, x)
        values = f.entropy(
            x,
            reduction="none",
            normalize=False if normalize is None else normalize,
            temperature=1.0 if temperature is None else temperature,
        )
    value = reduce(ops, values, reduction, mask)
    return value if mode == "penalty" else -value, extremes(ops, values, mask, "entropy")


@shared("mean", metrics={"kl": "mean", "kl_max": "max", "kl_min": "min"})
@strict_options
def kl(
    logprobs: ArrayTree,
    reference: ArrayTree,
    mask: ArrayTree = None,
    *,
    estimator: Literal["k1", "k2", "k3"] | None = None,
    direction: Literal["forward", "reverse", "symmetric"] | None = None,
    reduction: Literal["sum", "mean"] = "mean",
    renormalize: bool | None = None,
) -> tuple[Any, Metrics]:
    """Divergence of the model from a reference at each position.

    For sampled tokens, (N,), KL(model ‖ reference) is estimated, by default with `estimator="k3"`: see
    `penalties.kl_estimate`. For K candidates, (N, K), it is exact: `direction="forward"`, the default, is
    KL(model ‖ reference), `"reverse"` is KL(reference ‖ model), `"symmetric"` their mean. Both sides are renormalised
    over the K first, unless `renormalize=False`. Metrics: `kl`, `kl_max` and `kl_min`, over the positions that count.

    >>> import numpy as np
    >>> value, _ = kl([np.log([0.5, 0.2])], [np.log([0.4, 0.4])])
    >>> round(float(value), 6)
    0.164998
    >>> value, _ = kl([np.log([[0.5, 0.5]])], [np.log([[0.09, 0.01]])])
    >>> round(float(value), 6)
    0.510826
    """
    check_choice("kl", "reduction", reduction, REDUCTIONS)
    batch = columns_of("kl", mask, logprobs=logprobs, reference=reference)
    ops = batch.ops
    if batch.sampled:
        why = _SAMPLED.format('use estimator="k1", "k2" or "k3"')
        reject("kl", why, direction=direction, renormalize=renormalize)
        (x, y), mask = batch.flat()
        estimator = "k3" if estimator is None else estimator
        values = f.kl_estimate(x, y, estimator=estimator, reduction="none")
    else:
        reject("kl", _CANDIDATES, estimator=estimator)
        direction = "forward" if direction is None else direction
        check_choice("kl", "direction", direction, ("forward", "reverse", "symmetric"))
        (x, y), mask = batch.rows()
        values = f.kl_divergence(
            _renormalized("kl", renormalize, x),
            _renormalized("kl", renormalize, y),
            direction="reverse" if direction == "reverse" else "forward",
            symmetric=direction == "symmetric",
            reduction="none",
        )
    return reduce(ops, values, reduction, mask), extremes(ops, values, mask, "kl")


@shared(
    "mean",
    metrics={"consistency": "mean", "consistency_max": "max", "consistency_min": "min"},
    coupled={"metric": ("cosine",)},
)
@strict_options
def consistency(
    logprobs: ArrayTree,
    pair: ArrayTree,
    mask: ArrayTree = None,
    *,
    metric: Literal["mse", "l1", "cosine", "kl"] = "mse",
    reduction: Literal["sum", "mean"] = "mean",
    renormalize: bool | None = None,
) -> tuple[Any, Metrics]:
    """The distance of the log-probabilities from a pair's, such as a perturbed input's; see `penalties.consistency`.

    `mse` and `l1` are per element. `cosine` is per datum for sampled tokens, (N,), over those that count, and per
    position for K candidates, (N, K). `kl` is the symmetric divergence at each position, for candidates only,
    renormalised unless `renormalize=False`. Metrics: `consistency`, `consistency_max` and `consistency_min`.

    >>> import numpy as np
    >>> value, _ = consistency([np.log([0.5, 0.5])], [np.log([0.4, 0.6])])
    >>> round(float(value), 6)
    0.041517
    """
    check_choice("consistency", "metric", metric, ("mse", "l1", "cosine", "kl"))
    check_choice("consistency", "reduction", reduction, REDUCTIONS)
    batch = columns_of("consistency", mask, logprobs=logprobs, pair=pair)
    ops = batch.ops
    if metric == "kl":
        if batch.sampled:
            reject("consistency", _SAMPLED.format("use the adapter kl"), metric=metric)
        (x, y), mask = batch.rows()
        x, y = _renormalized("consistency", renormalize, x), _renormalized("consistency", renormalize, y)
    else:
        reject("consistency", f'metric="{metric}" does not renormalise', renormalize=renormalize)
        if metric == "cosine":
            (x, y), mask = batch.stacked() if batch.sampled else _positions(batch)
        else:
            (x, y), mask = batch.flat()
    values = f.consistency(x, y, metric=metric, reduction="none")
    return reduce(ops, values, reduction, mask), extremes(ops, values, mask, "consistency")


def _renormalized(function: str, renormalize: bool | None, x: Any) -> Any:
    if renormalize is not None:
        check_flag(function, "renormalize", renormalize)
    return x if renormalize is False else f.renormalize(x)


def _positions(batch: Columns) -> tuple[list[Any], Any]:
    """All positions as rows, with 0 for a candidate that does not count, and how much each position counts."""
    ops = batch.ops
    width = batch.columns[0][0].shape[-1]
    rows, mask = batch.flat()
    matrices = [row.reshape(-1, width) for row in rows]
    return matrices, None if mask is None else ops.amax(ops.abs(mask.reshape(-1, width)), -1)
