"""Weights & Biases: a row of metrics per step."""

from collections.abc import Mapping
from typing import Any

from ..errors import OptionError
from .scalars import scalar
from .sink import MetricsSink, library

__all__ = ["WeightsAndBiases"]


class WeightsAndBiases(MetricsSink):
    """Log the metrics of every stop to a run: the given one, or the active one, `wandb.run`.

    For events without a step, W&B counts steps itself. It drops a row whose step is below the run's last: if you pass
    steps to a pipeline, pass the same steps to `run.log`. Closing the sink does not finish the run.

    >>> from penalties.telemetry import WeightsAndBiases
    >>> try:
    ...     WeightsAndBiases()
    ... except ValueError as error:
    ...     print(error)
    WeightsAndBiases: run=None; expected a run, or an active one: call wandb.init() first
    """

    def __init__(self, run: Any = None) -> None:
        """Find the run."""
        wandb = library("WeightsAndBiases", "wandb", package="wandb", extra="wandb")
        self.run: Any = wandb.run if run is None else run
        if self.run is None:
            raise OptionError("WeightsAndBiases", "run", None, "a run, or an active one: call wandb.init() first")
        super().__init__(f"run {self.run.id}")

    def step(self, event: str, metadata: Mapping[str, Any]) -> int | None:
        """The event's step; with None, W&B counts."""
        return scalar(metadata.get("step"))

    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        """Log a row."""
        self.run.log(dict(metrics), step=step)
