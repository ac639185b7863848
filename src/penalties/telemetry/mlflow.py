"""MLflow: a batch of metrics per step."""

import re
import time
from collections.abc import Mapping

from ..errors import OptionError
from .sink import MetricsSink, library

__all__ = ["MLflow"]


class MLflow(MetricsSink):
    """Log the metrics of every stop to a run: the one with this id, or the one that is active in this thread.

    MLflow's stores do not accept every name: slashes after the first become dots (`loss/l1.weighted`), and characters
    that MLflow rejects become underscores. Closing the sink does not end the run.

    >>> from penalties.telemetry import MLflow
    >>> try:
    ...     MLflow()
    ... except ValueError as error:
    ...     print(error)
    MLflow: run_id=None; expected the id of a run, or an active one: call mlflow.start_run() first
    """

    def __init__(self, run_id: str | None = None, *, tracking_uri: str | None = None) -> None:
        """Find the run, which must exist, in this store or in MLflow's current one."""
        mlflow = library("MLflow", "mlflow", package="mlflow", extra="mlflow")
        if run_id is None:
            # Looked up here: MLflow's active run belongs to a thread, and events may come from another.
            active = mlflow.active_run()
            if active is None:
                expected = "the id of a run, or an active one: call mlflow.start_run() first"
                raise OptionError("MLflow", "run_id", None, expected)
            run_id = active.info.run_id
        self._client = mlflow.MlflowClient(tracking_uri)
        self._metric = mlflow.entities.Metric
        self.run_id: str = self._client.get_run(run_id).info.run_id
        super().__init__(f"run {self.run_id}")

    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        """Send the numbers of a step in one request."""
        now = time.time_ns() // 1_000_000
        batch = [self._metric(_name(name), value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self.run_id, metrics=batch)


def _name(name: str) -> str:
    # MLflow's file store keeps each metric in a file named after it, which cannot also be another metric's folder.
    group, slash, rest = name.partition("/")
    return re.sub(r"[^/\w.\- :]", "_", group + slash + rest.replace("/", "."))
