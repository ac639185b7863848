"""The sinks of a config: what they hear of a run, and what they do not."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from penalties import LossOutput, telemetry
from penalties.app import sinks as sinks_module
from penalties.app import train as train_module
from penalties.app.config_tables import MLflowTable, OpenTelemetryTable, SinksTable, TensorBoardTable, WandbTable
from penalties.app.sinks import attached
from penalties.app.train import Interrupted, train
from penalties.telemetry import events
from penalties.telemetry.sink import MetricsSink

from .stand_ins import Backend, killing, toy_config


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module, "connect", Backend)


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


def test_a_sink_hears_each_step_once_and_evaluations_under_their_own_names(tmp_path: Path, sink: Remembering) -> None:
    train(config_with(tmp_path, tensorboard=True), tmp_path / "run")
    steps = [step for step, row in sink.rows if "loss/total" in row]
    assert steps == list(range(6))
    evaluations = [(step, set(row)) for step, row in sink.rows if "loss/total" not in row]
    assert [step for step, _ in evaluations] == [0, 3, 6]
    assert all("eval/loss/base_loss" in names and all(n.startswith("eval/") for n in names) for _, names in evaluations)
    assert sink.closed
    assert not events.handlers


def test_a_sink_that_fails_does_not_end_the_run(
    tmp_path: Path, sink: Remembering, caplog: pytest.LogCaptureFixture
) -> None:
    sink.fails = True
    with caplog.at_level(logging.ERROR, "penalties.telemetry"):
        run = train(config_with(tmp_path, tensorboard=True), tmp_path / "run")
    last = run.last()
    assert last is not None
    assert last["event"] == "finished"
    assert "hears no more evaluations" in caplog.text
    assert "is detached" in caplog.text


def test_tensorboard_writes_into_the_run(tmp_path: Path) -> None:
    train(config_with(tmp_path, tensorboard=True), tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    train(config_with(tmp_path, tensorboard=TensorBoardTable(folder=str(tmp_path / "board"))), tmp_path / "other")
    assert list((tmp_path / "board").iterdir())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_mlflow_has_one_run_even_where_it_was_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert {metric.step for metric in history} == set(range(6))


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_wandb_writes_into_the_run_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = train(config_with(tmp_path, wandb=WandbTable(project="mine")), tmp_path / "run")
    (written,) = (run.folder / "wandb").glob("offline-run-*")
    assert list(written.glob("*.wandb"))


def test_opentelemetry_has_a_span_for_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    train(config_with(tmp_path, opentelemetry=OpenTelemetryTable()), tmp_path / "run")
    spans = exporter.get_finished_spans()
    assert [span.attributes["penalties.step"] for span in spans] == list(range(6))
    assert all(len(span.events) >= 3 for span in spans)


def test_nothing_is_attached_where_nothing_was_asked_for(tmp_path: Path) -> None:
    with attached(SinksTable(), tmp_path, {}) as sinks:
        assert not events.handlers
        sinks.evaluated(LossOutput.of([]), 0)


def test_what_only_listens_hears_no_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = telemetry.JSONLines(tmp_path / "lines.jsonl")
    monkeypatch.setitem(sinks_module._MAKERS, "tensorboard", lambda *_: made)
    train(config_with(tmp_path, tensorboard=True), tmp_path / "run")
    assert len((tmp_path / "lines.jsonl").read_text().splitlines()) == 6
