"""TensorBoard, MLflow, Weights & Biases: what is read back is what the pipeline said, at its step."""

import importlib.machinery
import math
import struct
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import tensorboardX
import wandb
from tensorboardX.proto import event_pb2
from wandb.proto import wandb_internal_pb2

from penalties import LossOutput, TermOutput
from penalties.errors import MissingLibraryError, OptionError, PenaltiesError
from penalties.telemetry import MLflow, TensorBoard, WeightsAndBiases, attach, events

from .outputs import Output, stop


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """Tag, step and value of every scalar in a folder of TensorBoard's."""
    (file,) = folder.glob("events.*")
    data = file.read_bytes()
    found: list[tuple[str, int, float]] = []
    while data:
        # A record: its length, a checksum of that, the message, a checksum of that.
        (length,) = struct.unpack("<Q", data[:8])
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        data = data[16 + length :]
    return found


def test_tensorboard_has_a_scalar_per_metric_and_step(tmp_path: Path):
    output = Output()
    with TensorBoard(tmp_path / "logs") as sink:
        stop(output, call=1, step=7)
        stop(Output(math.nan), call=2, step=8)
    assert repr(sink) == f"<TensorBoard {tmp_path / 'logs'}, closed>"
    sink.close()
    assert output.transfers == 1
    first, second = np.split(np.array(scalars(tmp_path / "logs"), dtype=object), 2)
    assert first.tolist() == [["loss/l1", 7, 6.0], ["loss/l1/weighted", 7, 3.0], ["loss/total", 7, 3.0]]
    assert second[:, 1].tolist() == [8, 8, 8]
    assert np.isnan(second[:, 2].astype(float)).all()


def test_norms_that_only_the_custom_loss_has_come_second(tmp_path: Path):
    plain = LossOutput.of([TermOutput("l1", 6.0, 0.5)])
    normed = LossOutput.of([TermOutput("l1", 6.0, 0.5, grad_norm=2.0)], total_grad_norm=1.0)
    with TensorBoard(tmp_path):
        for call, outputs in ((1, (plain, normed)), (2, (normed, normed)), (3, (plain, plain))):
            stop(outputs[0], call=call, step=call)
            stop(outputs[1], call=call, step=call, event="custom_loss.stop")
    found = scalars(tmp_path)
    assert len(found) == len(set(found))
    norms = [(tag, step) for tag, step, _ in found if tag.startswith("grad_norm/")]
    assert norms == [(tag, step) for step in (1, 2) for tag in ("grad_norm/l1", "grad_norm/total")]
    assert [step for tag, step, _ in found if tag == "loss/l1"] == [1, 2, 3]


def test_calls_without_a_step_are_counted_once_each(tmp_path: Path):
    with TensorBoard(tmp_path) as sink:
        stop(Output(), call=1)
        stop(Output(), call=1, event="custom_loss.stop")  # the custom loss around that pipeline
        stop(Output(), call=2)
        sink("pipeline.stop", {}, {"output": Output()})
        sink("pipeline.stop", {}, {"output": Output()})
    assert [step for tag, step, _ in scalars(tmp_path) if tag == "loss/l1"] == [0, 1, 2, 3]


def test_events_without_an_output_are_errors(tmp_path: Path):
    sink = TensorBoard(tmp_path)
    with pytest.raises(PenaltiesError, match="got term.stop, which has no output"):
        sink("term.stop", {}, {})
    sink.close()


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let TensorBoard seem to be installed."""
    module = types.ModuleType("tensorboard")
    module.__spec__ = importlib.machinery.ModuleSpec("tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard", module)


@pytest.mark.usefixtures("tensorboard")
def test_the_writer_of_pytorch_is_taken_where_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []

    def writer(log_dir: str, **options: Any) -> Any:
        made.append(log_dir)
        return tensorboardX.SummaryWriter(log_dir, **options)

    module = types.ModuleType("torch.utils.tensorboard")
    monkeypatch.setattr(module, "SummaryWriter", writer, raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    TensorBoard(tmp_path).close()
    assert made == [str(tmp_path)]


@pytest.mark.usefixtures("tensorboard")
def test_tensorboardx_is_taken_where_that_of_pytorch_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with TensorBoard(tmp_path):
        stop(Output())
    assert len(scalars(tmp_path)) == 3


@pytest.mark.parametrize(
    ("sink", "module", "message"),
    [
        (
            lambda: TensorBoard("x"),
            "tensorboardX",
            'TensorBoard needs tensorboardX: pip install "penalties[tensorboard]"',
        ),
        (MLflow, "mlflow", 'MLflow needs mlflow: pip install "penalties[mlflow]"'),
        (WeightsAndBiases, "wandb", 'WeightsAndBiases needs wandb: pip install "penalties[wandb]"'),
    ],
)
def test_a_missing_library_is_one_line_that_says_what_to_install(
    sink: Any, module: str, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingLibraryError) as caught:
        sink()
    assert str(caught.value) == message


def test_a_library_that_lacks_something_itself_says_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "wandb.py").write_text("import a_library_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb")
    with pytest.raises(ModuleNotFoundError, match="a_library_that_nobody_has") as caught:
        WeightsAndBiases()
    assert not isinstance(caught.value, MissingLibraryError)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of files, which is all that the small MLflow has."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    yield tmp_path
    mlflow.set_tracking_uri(before)


@pytest.mark.usefixtures("store")
def test_mlflow_has_the_metrics_of_the_active_run():
    output = Output()
    with mlflow.start_run() as run:
        with MLflow() as sink:
            stop(output, call=1, step=7)
            stop(Output(math.nan), call=2, step=8)
        assert repr(sink) == f"<MLflow run {run.info.run_id}, closed>"
        assert mlflow.active_run() is not None
    assert output.transfers == 1
    client = mlflow.MlflowClient()
    for name, value in {"loss/l1": 6.0, "loss/l1.weighted": 3.0, "loss/total": 3.0}.items():
        first, second = client.get_metric_history(run.info.run_id, name)
        assert (first.step, first.value) == (7, value)
        assert second.step == 8
        assert math.isnan(second.value)


@pytest.mark.usefixtures("store")
def test_mlflow_takes_the_id_of_a_run_and_every_name():
    with mlflow.start_run() as run:
        pass
    with MLflow(run.info.run_id) as sink:
        sink.log({"loss/kl(p|q)": 1.0, "θ": 2.0}, 0)
    assert mlflow.MlflowClient().get_run(run.info.run_id).data.metrics == {"loss/kl_p_q_": 1.0, "θ": 2.0}


@pytest.mark.usefixtures("store")
def test_mlflow_without_a_run_is_an_error():
    with pytest.raises(OptionError, match=r"MLflow: run_id=None; expected .* mlflow.start_run\(\) first"):
        MLflow()
    with pytest.raises(mlflow.MlflowException, match="'no-such-run' not found"):
        MLflow("no-such-run")
    assert events.handlers == ()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    """A run of W&B's that stays in a folder."""
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    run = wandb.init(project="penalties", mode="offline", dir=tmp_path, settings=settings)
    yield run
    run.finish()


def rows(run: Any) -> list[dict[str, str]]:
    """What a finished run has in its file."""
    kinds: list[str] = []
    end = time.monotonic() + 60.0
    while "exit" not in kinds:
        # Another process writes it, and may still be writing when `finish` returns.
        assert time.monotonic() < end, f"the file ends with {kinds[-1:]}"
        records = list(_records(Path(run.settings.sync_file).read_bytes()))
        kinds = [record.WhichOneof("record_type") for record in records]
    return [
        {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        for record, kind in zip(records, kinds, strict=True)
        if kind == "history"
    ]


def _records(data: bytes) -> Iterator[Any]:
    assert len(data) < 2**15  # a single block
    data = data[7:]
    while len(data) > 7:
        # A record: a checksum, its length, its type, the message.
        (length,) = struct.unpack("<H", data[4:6])
        if len(data) < 7 + length:
            break
        yield wandb_internal_pb2.Record.FromString(data[7 : 7 + length])
        data = data[7 + length :]


def test_wandb_has_a_row_per_step(run: Any):
    output = Output()
    with WeightsAndBiases() as sink:
        stop(output, call=1, step=np.int64(7))
        stop(Output(math.nan), call=2, step=8)
    assert repr(sink) == f"<WeightsAndBiases run {run.id}, closed>"
    run.finish()
    assert output.transfers == 1
    first, second = rows(run)
    assert (first["_step"], first["loss/l1"], first["loss/l1/weighted"]) == ("7", "6", "3")
    assert (second["_step"], second["loss/total"]) == ("8", "NaN")


def test_wandb_counts_itself_where_there_is_no_step(run: Any):
    attach(WeightsAndBiases(run))
    for call in range(2):
        stop(Output(), call=call)
        run.log({"accuracy": 0.5})
    run.finish()
    assert [row["_step"] for row in rows(run)] == ["0", "1", "2", "3"]


def test_wandb_without_a_run_is_an_error():
    with pytest.raises(OptionError, match=r"WeightsAndBiases: run=None; expected a run, .* wandb.init\(\) first"):
        WeightsAndBiases()


def test_calls_that_are_measured_in_turn_keep_their_steps(tmp_path: Path):
    plain = LossOutput.of([TermOutput("l1", 6.0, 0.5)])
    normed = LossOutput.of([TermOutput("l1", 6.0, 0.5, grad_norm=2.0)], total_grad_norm=1.0)
    with TensorBoard(tmp_path):
        for event, output in (("pipeline.stop", plain), ("gradients.stop", normed), ("gradients.stop", normed)):
            for call in (1, 2):
                stop(output, call=call, event=event)
    found = scalars(tmp_path)
    assert len(found) == len(set(found))
    assert [step for tag, step, _ in found if tag == "loss/l1"] == [0, 1]
    assert [step for tag, step, _ in found if tag == "grad_norm/l1"] == [0, 1]
