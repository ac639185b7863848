"""Where metrics go beside the run's own log: the sinks of a config, attached while a run trains."""

import contextlib
import importlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Generator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .. import telemetry
from ..pipeline.output import LossOutput
from ..telemetry.sink import MetricsSink, Sink, library
from .disk import write_whole, writing

if TYPE_CHECKING:
    from .config_tables import SinksTable

__all__ = ["Sinks", "attached"]

_HEARS: Final = ("pipeline.start", "pipeline.stop", "pipeline.exception", "term.stop", "term.exception")
"""A step is one call of a pipeline: what is told of the custom loss around it is the same again."""
_KNOWN: Final = "sinks.json"
_TRACKING: Final = "MLFLOW_TRACKING_URI"


class Sinks:
    """The sinks of a run; while held-out data are looked at, they hear nothing of it."""

    def __init__(self, sinks: list[Sink]) -> None:
        """Those that are attached."""
        self._sinks = sinks
        self._muted = False

    @contextlib.contextmanager
    def muted(self) -> Generator[None]:
        """Hear nothing meanwhile: one would take the numbers of an evaluation for those of a step."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def hearing(self, sink: Sink) -> telemetry.Handler:
        """The sink as a handler."""

        def hear(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
            if not self._muted:
                sink(event, measurements, metadata)

        return hear

    def evaluated(self, output: LossOutput, step: int) -> None:
        """The numbers of an evaluation, under `eval/`."""
        metrics = {f"eval/{name}": value for name, value in output.metrics(style="slash").items()}
        for sink in list(self._sinks):
            if isinstance(sink, MetricsSink):
                try:
                    sink.log(metrics, step)
                except Exception:
                    # As for events: said once, and training goes on.
                    self._sinks.remove(sink)
                    logging.getLogger("penalties.telemetry").exception("%r hears no more evaluations", sink)


@contextlib.contextmanager
def attached(table: "SinksTable", folder: Path, config: Mapping[str, Any]) -> Generator[Sinks]:
    """The sinks that a config asks for, for the run in this folder, until the end of the block."""
    with contextlib.ExitStack() as ending:
        made: list[Sink] = []
        sinks = Sinks(made)
        for name, make in _MAKERS.items():
            options = getattr(table, name)
            if options is None:
                continue
            sink = make(options, folder, config, ending)
            ending.callback(sink.close)
            made.append(sink)
            events = [event for event in _HEARS if event in sink.events]
            ending.callback(telemetry.detach, telemetry.attach(sinks.hearing(sink), events))
        yield sinks


class _TensorBoard(telemetry.TensorBoard):
    """All scalars of a step in one event: one by one, 27 of them took 1.3 ms, and as much in the writer's thread."""

    def __init__(self, log_dir: str | Path) -> None:
        super().__init__(log_dir)
        ours = "tensorboard.compat" if type(self._writer).__module__.startswith("torch.") else "tensorboardX"
        self._summary: Any = importlib.import_module(f"{ours}.proto.summary_pb2").Summary

    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer._get_file_writer().add_summary(self._summary(value=values), step)


def _tensorboard(options: Any, folder: Path, config: Mapping[str, Any], ending: contextlib.ExitStack) -> Sink:
    return _TensorBoard(options.folder or folder / "tensorboard")


def _mlflow(options: Any, folder: Path, config: Mapping[str, Any], ending: contextlib.ExitStack) -> Sink:
    mlflow = library("sinks.mlflow", "mlflow", package="mlflow", extra="mlflow")
    where = options.tracking_uri or os.environ.get(_TRACKING) or _store(folder.absolute())
    client = mlflow.MlflowClient(where)

    def begin() -> str:
        found = client.get_experiment_by_name(options.experiment)
        experiment = client.create_experiment(options.experiment) if found is None else found.experiment_id
        return client.create_run(experiment, run_name=folder.name).info.run_id

    run_id = _same(folder, "mlflow", begin)
    ending.callback(client.set_terminated, run_id)
    with _tracking(mlflow, where):
        return telemetry.MLflow(run_id)


@contextlib.contextmanager
def _tracking(mlflow: Any, where: str) -> Generator[None]:
    """MLflow's own setting, which is another one's too, and which it puts into the environment."""
    before, set_there = mlflow.get_tracking_uri(), _TRACKING in os.environ
    mlflow.set_tracking_uri(where)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)
        if not set_there:
            os.environ.pop(_TRACKING, None)


def _store(folder: Path) -> str:
    """A store of MLflow's in the run: a database where it can have one, files for the small MLflow."""
    if find_spec("sqlalchemy") is not None:
        return f"sqlite:///{folder}/mlflow.db"
    # It would have us run a server instead.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return (folder / "mlflow").as_uri()


def _wandb(options: Any, folder: Path, config: Mapping[str, Any], ending: contextlib.ExitStack) -> Sink:
    wandb = library("sinks.wandb", "wandb", package="wandb", extra="wandb")
    run_id = _same(folder, "wandb", lambda: secrets.token_hex(4))
    run = wandb.init(
        project=options.project,
        name=folder.name,
        id=run_id,
        dir=str(folder),
        config=dict(config),
        mode="offline",
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
    )
    ending.callback(run.finish)
    return telemetry.WeightsAndBiases(run)


def _opentelemetry(options: Any, folder: Path, config: Mapping[str, Any], ending: contextlib.ExitStack) -> Sink:
    return telemetry.OpenTelemetry()


_MAKERS: Final[dict[str, Callable[[Any, Path, Mapping[str, Any], contextlib.ExitStack], Sink]]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
    "opentelemetry": _opentelemetry,
}
"""A sink of a config is a function here, and a line."""


def _same(folder: Path, name: str, begin: Callable[[], str]) -> str:
    """The id that the run has there, the same again when it goes on."""
    path = folder / _KNOWN
    known: dict[str, str] = json.loads(path.read_bytes()) if path.is_file() else {}
    if name not in known:
        known[name] = begin()
        with writing(path):
            write_whole(path, (json.dumps(known) + "\n").encode())
    return known[name]
