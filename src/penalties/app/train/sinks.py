"""The sinks of a config, attached while a run trains: metrics beside the run's own log."""

import contextlib
import functools
import json
import os
import secrets
import traceback
from collections.abc import Callable, Generator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ... import telemetry
from ...errors import PenaltiesError, said
from ...files import write_atomically
from ...pipeline.output import LossOutput
from ...telemetry.sink import MetricsSink, Sink, library
from ..privacy import hide, secret_in
from ..runs.disk import read_object, writing

if TYPE_CHECKING:
    from ..config.tables import SinksTable

__all__ = ["Sinks", "attached"]

_EVENTS: Final = ("pipeline.start", "pipeline.stop", "pipeline.exception", "term.stop", "term.exception")
"""A step is one call of a pipeline; the custom loss around it would repeat all but the gradient norms."""
_IDS: Final = "sinks.json"
_TRACKING: Final = "MLFLOW_TRACKING_URI"
_HTTP: Final = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""Limits of MLflow's requests, unless the user sets others: by default a missing server holds a run up for minutes."""
_ENDED: Final = {"success": "FINISHED", "errored": "FAILED", "interrupted": "KILLED"}
"""How a run ended, in MLflow's words."""


class Sinks:
    """The sinks of a run; they are muted while held-out data are evaluated.

    A sink that fails is reported once and detached, and the run goes on.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], step: int, report: Callable[[str], None]) -> None:
        """None yet; `step` steps are finished, and failures are passed to `report`."""
        self.folder: Path = folder.absolute()
        self.config = config
        self.step = step
        self.status: str = "errored"
        """How the run ended, "success", "errored" or "interrupted": to be set before the sinks are closed."""
        self._sinks: dict[str, Sink] = {}
        self._failed: set[str] = set()
        self._report = report
        self._muted = False

    def add(self, name: str, options: Any, ending: contextlib.ExitStack) -> None:
        """Make a sink and attach it; the stack closes it."""
        own = contextlib.ExitStack()
        ending.callback(self._try, name, own.close)
        try:
            sink = _MAKERS[name](options, self, own)
            own.callback(sink.close)
            self._sinks[name] = sink
            events = [event for event in _EVENTS if event in sink.events]
            if isinstance(sink, MetricsSink):
                # Gradients at the parameters are measured after the pipeline stopped.
                events.append("custom_loss.stop")
            own.callback(telemetry.detach, telemetry.attach(functools.partial(self._handle, name), events))
        except ImportError:
            # Nothing is trained yet, and the user can install it.
            raise
        except Exception as error:
            self._fail(name, error)

    @contextlib.contextmanager
    def muted(self) -> Generator[None]:
        """Pass nothing on meanwhile: a sink would take the numbers of an evaluation for those of a step."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def evaluated(self, output: LossOutput, step: int) -> None:
        """Pass on the numbers of an evaluation: under `eval/`, or as a span of that name."""
        metrics = {f"eval/{name}": value for name, value in output.metrics(style="slash").items()}
        for name, sink in list(self._sinks.items()):
            if isinstance(sink, MetricsSink):
                self._try(name, sink.log, metrics, step)
            elif isinstance(sink, telemetry.OpenTelemetry):
                self._try(name, sink.record, "eval.start", {}, {"step": step})
                self._try(name, sink.record, "eval.stop", {}, {"output": output})

    def measured(self, metrics: Mapping[str, float], step: int) -> None:
        """Pass on the metrics over samples, under `eval/`."""
        for name, sink in list(self._sinks.items()):
            if isinstance(sink, MetricsSink) and metrics:
                self._try(name, sink.log, {f"eval/{one}": value for one, value in metrics.items()}, step)

    def flush(self) -> None:
        """Have the sinks send what is waiting."""
        for name, sink in list(self._sinks.items()):
            self._try(name, sink.flush)

    def _handle(self, name: str, event: str, measurements: Any, metadata: Mapping[str, Any]) -> None:
        # It may have failed meanwhile, in another thread.
        sink = self._sinks.get(name)
        if sink is not None and not self._muted:
            if isinstance(metadata.get("step"), int):
                # As in the run's own log, where the first step is 1.
                metadata = {**metadata, "step": metadata["step"] + 1}
            if "error" in metadata:
                metadata = {**metadata, "error": _without_keys(metadata["error"])}
            self._try(name, sink, event, measurements, metadata)

    def _try(self, name: str, do: Callable[..., Any], *arguments: Any) -> None:
        try:
            do(*arguments)
        except Exception as error:
            self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        self._sinks.pop(name, None)
        if name not in self._failed:
            self._failed.add(name)
            self._report(f"sinks.{name} failed and was detached: {said(error).splitlines()[0]}")


def _without_keys(error: BaseException) -> BaseException:
    """The error itself; if it or one of its causes repeats a key, its message alone, without the key."""
    if secret_in("".join(traceback.format_exception(error))) is None:
        return error
    return PenaltiesError(hide(said(error)))


@contextlib.contextmanager
def attached(
    table: "SinksTable", folder: Path, config: Mapping[str, Any], *, step: int = 0, report: Callable[[str], None]
) -> Generator[Sinks]:
    """The sinks that a config asks for, for the run in this folder, until the end of the block.

    A resumed run has finished `step` steps. Failures are passed to `report`.
    """
    with contextlib.ExitStack() as ending:
        sinks = Sinks(folder, config, step, report)
        for name in _MAKERS:
            options = getattr(table, name)
            if options is not None:
                sinks.add(name, options, ending)
        yield sinks


def _tensorboard(options: Any, run: Sinks, ending: contextlib.ExitStack) -> Sink:
    # In a folder that runs may share, each has one of its own.
    folder = run.folder / "tensorboard" if options.folder is None else Path(options.folder) / run.folder.name
    # The evaluation at the checkpoint's step is not done again, so that step stays visible.
    return telemetry.TensorBoard(folder, purge_step=run.step + 1 if run.step else None)


def _mlflow(options: Any, run: Sinks, ending: contextlib.ExitStack) -> Sink:
    mlflow = library("sinks.mlflow", "mlflow", package="mlflow", extra="mlflow")
    store = options.tracking_uri or os.environ.get(_TRACKING) or _store(run.folder)
    ending.enter_context(_http_limits())
    client = mlflow.MlflowClient(store)

    def begin() -> str:
        found = client.get_experiment_by_name(options.experiment)
        experiment = client.create_experiment(options.experiment) if found is None else found.experiment_id
        return client.create_run(experiment, run_name=run.folder.name).info.run_id

    run_id = _kept_id(run.folder, "mlflow", begin)
    client.update_run(run_id, "RUNNING")
    ending.callback(lambda: client.set_terminated(run_id, _ENDED[run.status]))
    return telemetry.MLflow(run_id, tracking_uri=store)


@contextlib.contextmanager
def _http_limits() -> Generator[None]:
    """Let no request of MLflow's take long; it reads the environment at each of them."""
    ours = {name: value for name, value in _HTTP.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _store(folder: Path) -> str:
    """The URI of a store of MLflow's in the run: a database if it can have one, files with the small MLflow."""
    if find_spec("sqlalchemy") is not None:
        return f"sqlite:///{folder}/mlflow.db"
    # Without this, MLflow asks the user to run a server instead.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return (folder / "mlflow").as_uri()


def _wandb(options: Any, run: Sinks, ending: contextlib.ExitStack) -> Sink:
    wandb = library("sinks.wandb", "wandb", package="wandb", extra="wandb")
    started = wandb.init(
        project=options.project,
        name=run.folder.name,
        id=_kept_id(run.folder, "wandb", lambda: secrets.token_hex(4)),
        dir=str(run.folder),
        config=dict(run.config),
        mode="offline",
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
    )
    ending.callback(lambda: started.finish(exit_code=int(run.status != "success")))
    return telemetry.WeightsAndBiases(started)


_MAKERS: Final[dict[str, Callable[[Any, Sinks, contextlib.ExitStack], Sink]]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
    "opentelemetry": lambda options, run, ending: telemetry.OpenTelemetry(),
}
"""A sink of a config is a function here, and a line."""


def _kept_id(folder: Path, name: str, begin: Callable[[], str]) -> str:
    """The id that the run has in a service, the same when it is resumed."""
    path = folder / _IDS
    known = read_object(path) if path.exists() else {}
    if name not in known:
        known[name] = begin()
        with writing(path):
            write_atomically(path, json.dumps(known) + "\n")
    return known[name]
