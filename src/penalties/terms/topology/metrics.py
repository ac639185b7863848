"""What one would plot of the features of a filtration."""

from collections.abc import Sequence

import numpy as np

from .persistence import Persistence

__all__ = ["averaged", "described"]


def described(found: Persistence, dimensions: Sequence[int], visible: float) -> dict[str, float]:
    """Numbers for each dimension; essential features count in `betti` alone."""
    metrics: dict[str, float] = {}
    for k in dimensions:
        life = found.life[found.dimension == k]
        finite = life[np.isfinite(life)]
        metrics[f"betti_{k}"] = int((life > visible).sum())
        metrics[f"features_{k}"] = len(finite)
        metrics[f"longest_{k}"] = float(finite.max(initial=0.0))
        metrics[f"total_{k}"] = float(finite.sum())
    return metrics


def averaged(metrics: Sequence[dict[str, float]]) -> dict[str, float]:
    """The means over a batch; those of one member are its own."""
    if len(metrics) == 1:
        return metrics[0]
    return {name: sum(one[name] for one in metrics) / len(metrics) for name in (metrics[0] if metrics else ())}
