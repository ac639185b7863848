"""Where metrics go beside the run's own log: the sinks of a config, attached while a run trains."""

import contextlib
import importlib
import json
import logging
import os
import secrets
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ... import telemetry
from ...errors import said
from ...files import write_atomically
from ...pipeline.output import LossOutput
from ...telemetry.sink import MetricsSink, Sink, library
from ..privacy import hide
from ..runs.disk import writing

if TYPE_CHECKING:
    from ..config.tables import SinksTable

__all__ = ["Sinks", "attached"]

_HEARS: Final = ("pipeline.start", "pipeline.stop", "pipeline.exception", "term.stop", "term.exception")
"""A step is one call of a pipeline: what is told of the custom loss around it is the same again, but for norms."""
_KNOWN: Final = "sinks.json"
_TRACKING: Final = "MLFLOW_TRACKING_URI"
_PATIENCE: Final = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""What MLflow may take for a request, unless the user says otherwise: by its own measure, a server that is not there
holds a run up for minutes."""
_ENDED: Final = {"success": "FINISHED", "errored": "FAILED", "interrupted": "KILLED"}
"""How a run ended, as MLflow says it."""
_FLUSH: Final = 1000
"""Milliseconds that spans may take to be sent at a checkpoint."""
_LATEST: Final = 10.0
"""Seconds until TensorBoard sees what was written."""


class Sinks:
    """The sinks of a run; while held-out data are looked at, they hear nothing of it.

    One that fails, whenever that is, is reported once and hears no more, and the run goes on.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        """None yet."""
        self.status: str = "errored"
        """How the run ended, "success", "errored" or "interrupted": to be set before the sinks are closed."""
        self._sinks: dict[str, Sink] = {}
        self._failed: set[str] = set()
        self._report = report
        self._muted = False

    def add(self, name: str, make: Callable[[contextlib.ExitStack], Sink], ending: contextlib.ExitStack) -> None:
        """Make a sink and attach it; the stack ends it."""
        own = contextlib.ExitStack()
        ending.callback(self._try, name, own.close)

        def begin() -> None:
            sink = make(own)
            own.callback(sink.close)
            self._sinks[name] = sink
            events = [event for event in _HEARS if event in sink.events]
            if isinstance(sink, MetricsSink):
                # Gradients at the parameters are measured after the pipeline stopped.
                events.append("custom_loss.stop")
            own.callback(telemetry.detach, telemetry.attach(self._hearing(name), events))

        try:
            begin()
        except ImportError:
            # The user can mend it, and nothing is trained yet.
            raise
        except Exception as error:
            self._fail(name, error)

    @contextlib.contextmanager
    def muted(self) -> Generator[None]:
        """Hear nothing meanwhile: one would take the numbers of an evaluation for those of a step."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def evaluated(self, output: LossOutput, step: int) -> None:
        """The numbers of an evaluation: under `eval/`, or a span of that name."""
        metrics = {f"eval/{name}": value for name, value in output.metrics(style="slash").items()}
        for name, sink in list(self._sinks.items()):
            if isinstance(sink, MetricsSink):
                self._try(name, lambda sink=sink: sink.log(metrics, step))
            elif isinstance(sink, _OpenTelemetry):
                self._try(name, lambda sink=sink: sink.evaluated(output, step))

    def flush(self) -> None:
        """Have everything written that was heard, so that a checkpoint has no more than the sinks."""
        for name, sink in list(self._sinks.items()):
            if isinstance(sink, _TensorBoard | _OpenTelemetry):
                self._try(name, sink.flush)

    def _hearing(self, name: str) -> telemetry.Handler:
        def hear(event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
            sink = self._sinks.get(name)
            if sink is not None and not self._muted:
                self._try(name, lambda: sink(event, measurements, metadata))

        return hear

    def _try(self, name: str, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:
            self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        self._sinks.pop(name, None)
        if name not in self._failed:
            self._failed.add(name)
            self._report(f"sinks.{name} failed, and hears no more of the run: {hide(said(error).splitlines()[0])}")


def _logged(message: str) -> None:
    # Formatted here, where keys are hidden.
    logging.getLogger("penalties.telemetry").error("%s\n%s", message, hide(traceback.format_exc()))


class _Run(NamedTuple):
    """What a sink may want to know of the run."""

    folder: Path
    config: Mapping[str, Any]
    step: int
    """The first step that it will hear of."""
    status: Callable[[], str]
    """How it ended, once it has."""


@contextlib.contextmanager
def attached(
    table: "SinksTable",
    folder: Path,
    config: Mapping[str, Any],
    *,
    step: int = 0,
    report: Callable[[str], None] | None = None,
) -> Generator[Sinks]:
    """The sinks that a config asks for, for the run in this folder, until the end of the block.

    A run that goes on does so at `step`. What fails is told to `report`, or logged with its traceback.
    """
    folder = folder.absolute()
    with contextlib.ExitStack() as ending:
        sinks = Sinks(_logged if report is None else report)
        run = _Run(folder, config, step, lambda: sinks.status)
        for name, make in _MAKERS.items():
            options = getattr(table, name)
            if options is not None:
                sinks.add(name, lambda own, make=make, options=options: make(options, run, own), ending)
        yield sinks


class _TensorBoard(telemetry.TensorBoard):
    """All scalars of a step in one event: one by one, 27 of them took 1.3 ms, and as much in the writer's thread."""

    def __init__(self, log_dir: str | Path, step: int) -> None:
        super().__init__(log_dir)
        torch = type(self._writer).__module__.startswith("torch.")
        proto = f"{'tensorboard.compat' if torch else 'tensorboardX'}.proto"
        self._summary: Any = importlib.import_module(f"{proto}.summary_pb2").Summary
        self._events: Any = importlib.import_module(f"{proto}.event_pb2")
        file = self._writer._get_file_writer().event_writer
        # tensorboardX puts events into a queue that its flush does not wait for: here they pass it.
        self._write: Callable[[Any], None] = file.add_event if torch else file._ev_writer.write_event
        self._next = 0.0
        if step > 0:
            self._forget(step)

    def _forget(self, step: int) -> None:
        """Have TensorBoard forget what came after this step, as a writer's `purge_step` does."""
        # The evaluation at this step was before the checkpoint, and is not done again: the step itself stays with it.
        first, log = step + 1, self._events.SessionLog
        self._write(self._events.Event(step=first, file_version="brain.Event:2"))
        self._write(self._events.Event(step=first, session_log=log(status=log.START)))

    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(self._events.Event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        self._writer.flush()
        self._next = time.monotonic() + _LATEST


def _tensorboard(options: Any, run: _Run, ending: contextlib.ExitStack) -> Sink:
    # In a folder that others may share, each run has one of its own.
    place = run.folder / "tensorboard" if options.folder is None else Path(options.folder) / run.folder.name
    return _TensorBoard(place, run.step)


def _mlflow(options: Any, run: _Run, ending: contextlib.ExitStack) -> Sink:
    mlflow = library("sinks.mlflow", "mlflow", package="mlflow", extra="mlflow")
    where = options.tracking_uri or os.environ.get(_TRACKING) or _store(run.folder)
    ending.enter_context(_patience())
    client = mlflow.MlflowClient(where)

    def begin() -> str:
        found = client.get_experiment_by_name(options.experiment)
        experiment = client.create_experiment(options.experiment) if found is None else found.experiment_id
        return client.create_run(experiment, run_name=run.folder.name).info.run_id

    run_id = _same(run.folder, "mlflow", begin)
    client.update_run(run_id, "RUNNING")
    ending.callback(lambda: client.set_terminated(run_id, _ENDED[run.status()]))
    with _tracking(mlflow, where):
        return telemetry.MLflow(run_id)


@contextlib.contextmanager
def _patience() -> Generator[None]:
    """Let no request of MLflow's take long; it reads the environment at each of them."""
    ours = {name: value for name, value in _PATIENCE.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


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


def _wandb(options: Any, run: _Run, ending: contextlib.ExitStack) -> Sink:
    wandb = library("sinks.wandb", "wandb", package="wandb", extra="wandb")
    there = wandb.init(
        project=options.project,
        name=run.folder.name,
        id=_same(run.folder, "wandb", lambda: secrets.token_hex(4)),
        dir=str(run.folder),
        config=dict(run.config),
        mode="offline",
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
    )
    ending.callback(lambda: there.finish(exit_code=int(run.status() != "success")))
    return telemetry.WeightsAndBiases(there)


class _OpenTelemetry(telemetry.OpenTelemetry):
    """With a span for each evaluation, and a way to send what is waiting."""

    def evaluated(self, output: LossOutput, step: int) -> None:
        self.record("eval.start", {}, {"step": step})
        self.record("eval.stop", {}, {"output": output})

    def flush(self) -> None:
        # The SDK's provider has it; that of the API alone, which sends nothing, has not.
        flush = getattr(self._trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(_FLUSH)


def _opentelemetry(options: Any, run: _Run, ending: contextlib.ExitStack) -> Sink:
    return _OpenTelemetry()


_MAKERS: Final[dict[str, Callable[[Any, _Run, contextlib.ExitStack], Sink]]] = {
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
            write_atomically(path, (json.dumps(known) + "\n"))
    return known[name]
