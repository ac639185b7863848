"""The best evaluation so far, by a metric, and when to stop waiting for a better one.

What it knows is part of every checkpoint: a run that is killed and resumed comes to the same decisions.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..problems import Problem, joined, nearest
from ..runs.disk import RunError

if TYPE_CHECKING:
    from ..config.tables import TrainTable

__all__ = ["Best", "NoMetric"]


class NoMetric(RunError):
    """No evaluation has the metric that picks the best checkpoint."""

    def __init__(self, message: str) -> None:
        """Keep what is wrong with the value of `train.best_by`."""
        super().__init__(f"train.best_by: {message}", 2)
        self.problem: Problem = Problem("train.best_by", message)


class Best:
    """The best evaluation, as `train.best_by` and the keys after it define it.

    >>> from penalties.app.config.tables import TrainTable
    >>> best = Best(TrainTable(best_by="loss", patience=2))
    >>> [best.look({"loss": loss}, step) for step, loss in enumerate([3.0, 2.0, 2.5, 2.25], 1)]
    [True, True, False, False]
    >>> best.step, best.value, best.exhausted
    (2, 2.0, True)
    """

    def __init__(self, train: "TrainTable", notes: Mapping[str, Any] | None = None) -> None:
        """Nothing yet, or the result of `notes`."""
        known = notes or {}
        self._train = train
        self.step: int | None = known.get("step")
        """The number of steps after which it was best."""
        self.value: float | None = known.get("value")
        self._waited: int = known.get("waited", 0)
        """Evaluations since then."""

    def notes(self) -> dict[str, Any]:
        """What it knows, as plain data."""
        return {"step": self.step, "value": self.value, "waited": self._waited}

    @property
    def exhausted(self) -> bool:
        """Whether the run has waited long enough for a better evaluation."""
        return self._train.patience is not None and self._waited >= self._train.patience

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Raise if an evaluation does not have the metric."""
        by = self._train.best_by
        if by is not None and by not in metrics:
            hint = nearest(by, metrics, quoted=True)
            names = joined(sorted(metrics), "and")
            raise NoMetric(f'found "{by}", which no evaluation has{hint} (there are {names})')

    def look(self, metrics: Mapping[str, Any], step: int) -> bool:
        """Take an evaluation into account; returns whether it is the best so far.

        A metric that is missing, because its term was left out, or that is not finite is never the best.
        """
        train = self._train
        if train.best_by is None:
            return False
        found = metrics.get(train.best_by)
        # NaN is not better than anything.
        value = math.nan if found is None or not math.isfinite(found) else float(found)
        sign = 1 if train.best_is == "lowest" else -1
        before = sign * math.inf if self.value is None else self.value
        if sign * (before - value) > train.min_improvement:
            self.step, self.value, self._waited = step, value, 0
            return True
        self._waited += 1
        return False
