"""MLflow: a batch of metrics per step."""

import re
import time
from collections.abc import Mapping

from ..errors import OptionError
from .sink import MetricsSink, library

__all__ = ["MLflow"]


class MLflow(MetricsSink):
    """Log the metrics of every stop to a run: the one of this id, or the one that is active in this thread.

    MLflow's stores do not take every name: after the first slash, further ones become full stops (`loss/l1.weighted`),
    and signs that MLflow refuses become underscores. The run is not ended; whoever started it does that.

    >>> from penalties.telemetry import MLflow
    >>> try:
    ...     MLflow()
    ... except ValueError as error:
    ...     print(error)
    MLflow: run_id=None; expected the id of a run, or an active one: call mlflow.start_run() first
    """

    def __init__(self, run_id: str | None = None) -> None:
        """Find the run, which must exist, in the store that MLflow is set to now."""
        mlflow = library("MLflow", "mlflow", package="mlflow", extra="mlflow")
        if run_id is None:
            # Now: MLflow's active run belongs to a thread, and events may come from another.
            active = mlflow.active_run()
            if active is None:
                expected = "the id of a run, or an active one: call mlflow.start_run() first"
                raise OptionError("MLflow", "run_id", None, expected)
            run_id = active.info.run_id
        self._client = mlflow.MlflowClient()
        self._metric = mlflow.entities.Metric
        self.run_id: str = self._client.get_run(run_id).info.run_id
        super().__init__(f"run {self.run_id}")

    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        """Send the numbers of a step in one request."""
        now = time.time_ns() // 1_000_000
        batch = [self._metric(_name(name), value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self.run_id, metrics=batch)


def _name(name: str) -> str:
    # In MLflow's store of files a metric is a file, and so cannot be the folder of another one.
    group, slash, rest = name.partition("/")
    return re.sub(r"[^/\w.\- :]", "_", group + slash + rest.replace("/", "."))
