"""The sinks of a config: what they hear of a run, and what they do not."""

import functools
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penalties import LossOutput, MissingLibraryError, Pipeline, Term, TermError, telemetry
from penalties.app.config.tables import MLflowTable, OpenTelemetryTable, SinksTable, TensorBoardTable, WandbTable
from penalties.app.train import Interrupted, train
from penalties.app.train import sinks as sinks_module
from penalties.app.train import start as start_module
from penalties.telemetry import events
from penalties.telemetry.sink import MetricsSink

from ..stand_ins import Backend, killing, toy_config

attached = functools.partial(sinks_module.attached, report=pytest.fail)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_module, "connect", Backend)


class Remembering(MetricsSink):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__("a list")
        self.rows: list[tuple[int | None, dict[str, float]]] = []
        self.fails = False

    def log(self, metrics: Any, step: int | None) -> None:
        if self.fails:
            raise RuntimeError("the store is gone")
        self.rows.append((step, dict(metrics)))


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Remembering:
    made = Remembering()
    monkeypatch.setitem(sinks_module._MAKERS, "tensorboard", lambda *_: made)
    return made


def config_with(folder: Path, **sinks: Any) -> Any:
    return toy_config(folder).model_copy(update={"sinks": SinksTable(**sinks)})


def test_a_sink_gets_each_step_once_and_evaluations_under_their_own_names(tmp_path: Path, sink: Remembering) -> None:
    train(config_with(tmp_path, tensorboard=True), tmp_path / "run")
    steps = [step for step, row in sink.rows if "loss/total" in row]
    assert steps == list(range(1, 7))
    evaluations = [(step, set(row)) for step, row in sink.rows if "loss/total" not in row]
    assert [step for step, _ in evaluations] == [0, 3, 6]
    assert all("eval/loss/base_loss" in names and all(n.startswith("eval/") for n in names) for _, names in evaluations)
    assert sink.closed
    assert not events.handlers


def test_a_sink_gets_the_metrics_over_samples(tmp_path: Path, sink: Remembering) -> None:
    more = '[sinks]\ntensorboard = true\n[samples]\nmetrics = ["exact_match"]\nmax_tokens = 2\n'
    train(toy_config(tmp_path, more=more), tmp_path / "run")
    assert [step for step, row in sink.rows if row == {"eval/exact_match": 0.0}] == [0, 3, 6]


def test_a_sink_that_fails_is_reported_once_and_the_run_continues(
    tmp_path: Path, sink: Remembering, caplog: pytest.LogCaptureFixture
) -> None:
    sink.fails = True
    with caplog.at_level(logging.WARNING):
        run = train(config_with(tmp_path, tensorboard=True), tmp_path / "run")
    last = run.last()
    assert last is not None
    assert last["event"] == "finished"
    assert sink.closed
    told = [*caplog.messages, *(one["message"] for one in run.records() if one.get("event") == "warning")]
    assert [one.splitlines()[0] for one in told if "sinks.tensorboard" in one] == [
        "sinks.tensorboard failed and was detached: RuntimeError: the store is gone"
    ]


class Failing(Remembering):
    """Fails where it is told to, and only there."""

    def __init__(self, where: str) -> None:
        super().__init__()
        if where == "making":
            raise RuntimeError("no such place\nand more about it")
        self.where = where

    def record(self, event: str, measurements: Any, metadata: Any) -> None:
        if self.where == "hearing":
            raise RuntimeError("no such place")

    def close(self) -> None:
        super().close()
        if self.where in ("closing", "hearing"):
            raise RuntimeError("no such place")


@pytest.mark.parametrize("where", ["making", "hearing", "closing"])
def test_a_sink_that_fails_at_any_point_is_reported_and_others_continue(
    tmp_path: Path, sink: Remembering, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setitem(sinks_module._MAKERS, "mlflow", lambda *_: Failing(where))
    told: list[str] = []
    with attached(SinksTable(tensorboard=TensorBoardTable(), mlflow=MLflowTable()), tmp_path, {}, report=told.append):
        for _ in range(2):
            events.emit("pipeline.stop", {}, {"output": LossOutput.of([]), "step": 0})
    assert told == ["sinks.mlflow failed and was detached: RuntimeError: no such place"]
    assert len(sink.rows) == 2
    assert sink.closed
    assert not events.handlers


def test_a_key_in_a_failure_is_hidden_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: Any) -> Any:
        raise RuntimeError("postgresql://me:long-secret@host refuses")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:long-secret@host/runs")
    monkeypatch.setitem(sinks_module._MAKERS, "mlflow", make)
    run = train(config_with(tmp_path, mlflow=MLflowTable()), tmp_path / "run")
    assert "<MLFLOW_TRACKING_URI>@host refuses" in run.metrics.read_text()
    assert "long-secret" not in run.metrics.read_text()


def test_a_library_that_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingLibraryError), attached(SinksTable(mlflow=MLflowTable()), tmp_path, {}):
        pass


def test_tensorboard_writes_into_the_run(tmp_path: Path) -> None:
    train(config_with(tmp_path, tensorboard=True), tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_runs_that_share_a_folder_of_tensorboard_have_each_their_own(tmp_path: Path) -> None:
    table = SinksTable(tensorboard=TensorBoardTable(folder=str(tmp_path / "board")))
    for name in ("one", "other"):
        with attached(table, tmp_path / name, {}):
            pass
    assert sorted(path.name for path in (tmp_path / "board").iterdir()) == ["one", "other"]


def scalars(folder: Path) -> list[tuple[str, int]]:
    """What TensorBoard would show: names and steps, without what a later writer had it forget."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found: list[tuple[str, int]] = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:
            # A record is its length, a checksum, what it holds, and another checksum.
            size = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + size])
            content = content[16 + size :]
            if event.session_log.status == SessionLog.START:
                found = [(tag, step) for tag, step in found if step < event.step]
            found += [(value.tag, event.step) for value in event.summary.value]
    return found


def test_tensorboard_forgets_the_steps_that_are_done_again(tmp_path: Path) -> None:
    table = SinksTable(tensorboard=TensorBoardTable())
    for first, last in ((0, 5), (2, 6)):
        with attached(table, tmp_path, {}, step=first) as sinks:
            for step in range(first, last):
                events.emit("pipeline.stop", {}, {"output": LossOutput.of([]), "step": step})
                if step == 1:
                    sinks.evaluated(LossOutput.of([]), 2)
        for path in (tmp_path / "tensorboard").iterdir():
            # Its name has the second of its beginning, and both begin in the same one.
            path.rename(path.with_name(f"{path.name}.{first}"))
    found = scalars(tmp_path / "tensorboard")
    steps = [step for tag, step in found if tag == "loss/total"]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert {step for tag, step in found if tag.startswith("eval/")} == {2}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_mlflow_has_one_run_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = (tmp_path / "store").as_uri()
    config = config_with(tmp_path, mlflow=MLflowTable(tracking_uri=store))
    before = mlflow.get_tracking_uri()
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", progress=killing(3))
    assert "MLFLOW_TRACKING_URI" not in os.environ
    monkeypatch.setenv("MLFLOW_TRACKING_URI", before)
    train(config, tmp_path / "run", resume=True)
    assert mlflow.get_tracking_uri() == before
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("penalties")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "loss/total")
    assert {metric.step for metric in history} == set(range(1, 7))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_mlflow_shows_how_the_run_ended_and_that_it_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = (tmp_path / "store").as_uri()
    client = mlflow.MlflowClient(store)

    def status() -> str:
        (run,) = client.search_runs([client.get_experiment_by_name("penalties").experiment_id])
        return run.info.status

    table = SinksTable(mlflow=MLflowTable(tracking_uri=store))
    for ended, expected in (("interrupted", "KILLED"), (None, "FAILED"), ("success", "FINISHED")):
        with attached(table, tmp_path, {}) as sinks:
            assert status() == "RUNNING"
            if ended is not None:
                sinks.status = ended
        assert status() == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("retries", [None, "0"])
def test_a_server_of_mlflow_that_is_not_there_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: str | None
) -> None:
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    if retries is not None:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", retries)
    told: list[str] = []
    began = time.monotonic()
    # Nobody listens to this port.
    table = SinksTable(mlflow=MLflowTable(tracking_uri="http://127.0.0.1:9"))
    with attached(table, tmp_path, {}, report=told.append):
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == (retries or "1")
    assert time.monotonic() - began < 20
    assert len(told) == 1
    assert told[0].startswith("sinks.mlflow failed")
    assert "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ
    assert os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES") == retries


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_mlflow_keeps_its_store_in_the_run_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # So that it is as before at the end.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(sinks_module, "find_spec", lambda name: None)
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        with attached(SinksTable(mlflow=MLflowTable(experiment="Default")), folder, {}):
            assert list((folder / "mlflow").iterdir())
    monkeypatch.setattr(sinks_module, "find_spec", lambda name: object())
    assert sinks_module._store(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_wandb_writes_into_the_run_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = train(config_with(tmp_path, wandb=WandbTable(project="mine")), tmp_path / "run")
    (written,) = (run.folder / "wandb").glob("offline-run-*")
    assert list(written.glob("*.wandb"))


def test_ids_that_are_not_an_object_detach_the_sink(tmp_path: Path) -> None:
    (tmp_path / "sinks.json").write_text("[]")
    told: list[str] = []
    with attached(SinksTable(wandb=WandbTable()), tmp_path, {}, report=told.append):
        pass
    assert "sinks.json is not a JSON object; restore the file" in told[0]


def test_wandb_has_one_run_that_is_resumed_and_shows_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, Any]] = []
    codes: list[int] = []

    def init(**options: Any) -> Any:
        begun.append(options)
        return SimpleNamespace(id=options["id"], finish=lambda exit_code: codes.append(exit_code))

    fake = SimpleNamespace(init=init, Settings=lambda **_: None)
    monkeypatch.setattr(sinks_module, "library", lambda *_, **__: fake)
    for status in ("interrupted", "success"):
        with attached(SinksTable(wandb=WandbTable()), tmp_path, {}) as sinks:
            sinks.status = status
    assert begun[0]["id"] == begun[1]["id"]
    assert {one["resume"] for one in begun} == {"allow"}
    assert codes == [1, 0]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Where OpenTelemetry's spans end up."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    # It keeps spans for an hour unless it is asked for them.
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    yield exporter
    provider.shutdown()


def test_a_span_has_the_error_of_a_term_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporter: Any
) -> None:
    monkeypatch.setenv("SCORER_API_KEY", "sk-0123456789")

    def failing(x: Any, *, key: str) -> Any:
        raise RuntimeError(f"401 for {key}")

    with attached(SinksTable(opentelemetry=OpenTelemetryTable()), tmp_path, {}) as sinks:
        for key in ("sk-0123456789", "no-key-of-ours"):
            with pytest.raises(TermError, match=key):
                Pipeline([Term(failing, options={"key": key})])(np.ones(2))
        sinks.flush()
    leaked, other = (span.to_json() for span in exporter.get_finished_spans())
    assert "401 for <SCORER_API_KEY>" in leaked
    assert "sk-0123456789" not in leaked
    assert "no-key-of-ours" in other
    assert "Traceback" in other


def test_opentelemetry_has_a_span_for_each_step_and_each_evaluation(tmp_path: Path, exporter: Any) -> None:
    train(config_with(tmp_path, opentelemetry=OpenTelemetryTable()), tmp_path / "run")
    with attached(SinksTable(opentelemetry=OpenTelemetryTable()), tmp_path, {}) as sinks:
        sinks.flush()
    spans = exporter.get_finished_spans()
    steps = [span for span in spans if span.name == "pipeline"]
    assert [span.attributes["penalties.step"] for span in steps] == list(range(1, 7))
    assert all(len(span.events) >= 3 for span in steps)
    evaluations = [span for span in spans if span.name == "eval"]
    assert [span.attributes["penalties.step"] for span in evaluations] == [0, 3, 6]
    assert all("penalties.metrics.kl" in span.attributes for span in evaluations)


def test_without_sinks_nothing_is_attached(tmp_path: Path) -> None:
    with attached(SinksTable(), tmp_path, {}) as sinks:
        assert not events.handlers
        sinks.evaluated(LossOutput.of([]), 0)


def test_sinks_of_events_get_no_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = telemetry.JSONLines(tmp_path / "lines.jsonl")
    monkeypatch.setitem(sinks_module._MAKERS, "tensorboard", lambda *_: made)
    train(config_with(tmp_path, tensorboard=True), tmp_path / "run")
    assert len((tmp_path / "lines.jsonl").read_text().splitlines()) == 6


def test_a_sink_that_cannot_start_is_logged_when_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_with(tmp_path, tensorboard=True)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", progress=killing(3))

    def broken(*_: Any) -> Any:
        raise OSError("no room")

    monkeypatch.setitem(sinks_module._MAKERS, "tensorboard", broken)
    run = train(config, tmp_path / "run", resume=True)
    told = [record["message"] for record in run.records() if record.get("event") == "warning"]
    assert told == ["sinks.tensorboard failed and was detached: OSError: no room"]
