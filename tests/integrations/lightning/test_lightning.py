"""The mixin and the callback in Lightning's trainer: parameters and losses of a loop by hand, for every window."""

import csv
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import penalties as pn
from penalties import telemetry
from penalties.integrations import lightning as integration

from . import cases

pytestmark = [
    # Lightning's own advice.
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
]


def assert_equal(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("batches", "accumulation"), [(10, 1), (40, 4), (80, 8), (42, 4)])
def test_ten_steps_end_where_a_loop_by_hand_ends(tmp_path: Path, batches: int, accumulation: int) -> None:
    model = cases.Model(cases.terms())
    trainer = cases.trainer(tmp_path, accumulate_grad_batches=accumulation)
    trainer.fit(model, cases.loader(cases.points(batches)))
    expected, losses = cases.by_hand(cases.windows(batches, accumulation), accumulation)
    assert_equal(model.layers, expected)
    assert trainer.global_step == len(losses)
    assert model.losses[-1] == pytest.approx(losses[-1])
    # The window that is logged last is that of the last step, at the parameters before it.
    logged = trainer.logged_metrics
    assert float(logged["loss/total"]) == pytest.approx(losses[-1])
    assert {"loss/decay", "loss/size/weighted", "loss/level/share", "weight/level", "loss/base_loss"} <= set(logged)
    assert not [name for name in logged if name.startswith("time/")]


def test_data_without_a_length_is_divided_by_the_nominal_number(tmp_path: Path) -> None:
    model = cases.Model(cases.terms())
    trainer = cases.trainer(tmp_path, accumulate_grad_batches=4)
    with pytest.warns(UserWarning, match='the data has no length.*scope "mean" are divided by 4') as warned:
        trainer.fit(model, cases.loader(cases.Stream(42)))
    assert len([one for one in warned if "has no length" in str(one.message)]) == 1
    windows = cases.windows(42, 4)
    expected, _ = cases.by_hand(windows[:-1], 4)
    optimizer = torch.optim.SGD(expected.parameters(), lr=cases.LEARNING_RATE)
    loss = 0.01 * sum(p.square().sum() for p in expected.parameters())
    for ((x, y),) in windows[-1]:
        logits = expected(x)
        loss = loss + (mse_loss(logits, y) + 0.1 * logits.square().mean()) / 4 + 0.01 * logits.abs().sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(expected.parameters(), cases.MAX_NORM)
    optimizer.step()
    assert_equal(model.layers, expected)


def stateful() -> pn.Term:
    return pn.EMA(pn.Term(pn.l2, name="slow", weight=0.1, inputs="logits", scope="mean"), decay=0.5)


def test_a_resumed_run_continues_exactly_with_its_state(tmp_path: Path) -> None:
    def run(epochs: int, resume: Path | None = None) -> tuple[cases.Model, Any]:
        pipeline = cases.terms(stateful(), pn.Term(pn.l1, 0.5, name="rare", inputs="params", every=3))
        model = cases.Model(pipeline.with_weights({"level": pn.schedules.linear(0.1, 1.0, 12)}))
        trainer = cases.trainer(tmp_path, accumulate_grad_batches=2, max_epochs=epochs)
        trainer.fit(model, cases.loader(cases.points(6)), ckpt_path=resume, weights_only=False if resume else None)
        return model, trainer

    whole, _ = run(4)
    half, trainer = run(2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed, trainer = run(4, tmp_path / "half.ckpt")
    assert trainer.global_step == 12
    for one, other in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, other)
    # The first window's output is there once it ends.
    assert resumed.losses == whole.losses[-len(resumed.losses) :]
    assert len(resumed.losses) + len(half.losses) == len(whole.losses) - 1


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_a_run_that_is_resumed_in_an_epoch_continues_exactly(tmp_path: Path) -> None:
    """Lightning starts the epoch's data over, so all batches are the same here."""
    x, y = cases.points(1).tensors
    same = TensorDataset(x.repeat(7, 1), y.repeat(7, 1))

    def run(resume: str | None = None) -> tuple[cases.Model, Any]:
        model = cases.Model(cases.terms(stateful()))
        saving = cases.lightning.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=2, save_top_k=-1)
        options = {"enable_checkpointing": True, "callbacks": [saving], "max_epochs": 2}
        trainer = cases.trainer(tmp_path, accumulate_grad_batches=2, **options)
        trainer.fit(model, cases.loader(same), ckpt_path=resume, weights_only=False if resume else None)
        return model, trainer

    whole, _ = run()
    # In the middle of the first epoch, whose last window has one micro-batch.
    resumed, trainer = run(str(tmp_path / "step=2.ckpt"))
    assert trainer.global_step == 8
    for one, other in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, other)
    assert resumed.loss_output.metrics() == whole.loss_output.metrics()


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, [3, 6, 8]), ({"max_steps": 7}, [3, 6, 7]), ({"max_epochs": 2}, [3, 6, 8, 9, 12, 15, 16])],
)
def test_what_loggers_and_monitors_see_is_logged(tmp_path: Path, options: Any, steps: list[int]) -> None:
    class Logs(cases.Model):
        logged: dict[int, float]

        def log_dict(self, dictionary: Any, **given: Any) -> None:
            if "loss/total" in dictionary:
                self.logged[self.trainer.global_step] = float(dictionary["loss/total"])
            super().log_dict(dictionary, **given)

    model = Logs(cases.terms())
    model.logged = {}
    logger = cases.lightning.loggers.CSVLogger(tmp_path)
    trainer = cases.trainer(tmp_path, accumulate_grad_batches=2, log_every_n_steps=3, logger=logger, **options)
    trainer.fit(model, cases.loader(cases.points(16)))
    _, losses = cases.by_hand(cases.windows(16, 2) * 2, 2)
    assert model.logged == {step: pytest.approx(losses[step - 1]) for step in steps}
    assert float(trainer.callback_metrics["loss/total"]) == pytest.approx(losses[steps[-1] - 1])
    # Lightning counts from 0.
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        seen = {int(row["step"]) + 1: float(row["loss/total"]) for row in csv.DictReader(file)}
    assert seen == {step: pytest.approx(losses[step - 1]) for step in steps if step % 3 == 0}


def test_norms_are_measured_in_the_steps_that_are_logged(tmp_path: Path) -> None:
    model = cases.Model(cases.terms(), norms_at="logits")
    trainer = cases.trainer(tmp_path, accumulate_grad_batches=2)
    trainer.fit(model, cases.loader(cases.points(2)))
    # The gradient of the mean of squares is 2x/n, that of the sum of magnitudes has length √n.
    logged = {name: float(number) for name, number in trainer.logged_metrics.items()}
    assert logged["grad_norm/size"] == pytest.approx(math.sqrt(cases.ROWS))
    assert "grad_norm/decay" not in logged
    # In the first of the two micro-batches.
    x, y = next(iter(cases.loader(cases.points(2))))
    logits = cases.network()(x)
    slopes = {"base_loss": 2 * (logits - y) / cases.ROWS, "level": 2 * logits / cases.ROWS}
    for name, slope in slopes.items():
        assert logged[f"grad_norm/{name}"] == pytest.approx(slope.norm().item())
    cosine = torch.cosine_similarity(*(slope.flatten() for slope in slopes.values()), dim=0)
    assert logged["grad_cos/base_loss__level"] == pytest.approx(cosine.item())


@pytest.mark.parametrize(("every", "measured"), [(0, []), (2, [2, 4])])
def test_norms_cost_nothing_in_the_other_steps(tmp_path: Path, every: int, measured: list[int]) -> None:
    found: list[int] = []

    class Looks(cases.Model):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if self.loss_output.total_grad_norm is not None:
                found.append(self.trainer.global_step)

    model = Looks(cases.terms(), norms_at="logits")
    cases.trainer(tmp_path, log_every_n_steps=every).fit(model, cases.loader(cases.points(5)))
    assert found == measured


def test_norms_alone_have_no_cosines(tmp_path: Path) -> None:
    model = cases.Model(cases.terms(), norms_at="logits", cosines=False)
    trainer = cases.trainer(tmp_path)
    trainer.fit(model, cases.loader(cases.points(1)))
    assert "grad_norm/base_loss" in trainer.logged_metrics
    assert not [name for name in trainer.logged_metrics if name.startswith("grad_cos/")]


class Skips(cases.Model):
    """Returns None for some batches, before it calls `penalize` or after."""

    skipped: tuple[int, ...] = ()
    penalizes = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        skips = batch_idx in self.skipped
        loss = None if skips and not self.penalizes else super().training_step(batch, batch_idx)
        return None if skips else loss


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("penalizes", [False, True])
def test_a_step_that_skips_its_batch_leaves_the_rest_of_the_window(tmp_path: Path, penalizes: bool) -> None:
    model = Skips(cases.terms(stateful()))
    # The last of one window, the first of the next, and all of the third.
    model.skipped, model.penalizes = (3, 4, 8, 9, 10, 11), penalizes
    trainer = cases.trainer(tmp_path, accumulate_grad_batches=4)
    trainer.fit(model, cases.loader(cases.points(12)))
    first, second, _ = cases.windows(12, 4)
    # Lightning divides by the nominal number, and so do terms of scope "mean": what is there counts as usual.
    expected = cases.network()
    optimizer = torch.optim.SGD(expected.parameters(), lr=cases.LEARNING_RATE)
    slow: Any = None
    for window in (first[:3], second[1:]):
        optimizer.zero_grad()
        loss = 0.01 * sum(p.square().sum() for p in expected.parameters())
        sizes = []
        for ((x, y),) in window:
            logits = expected(x)
            loss = loss + (mse_loss(logits, y) + 0.1 * logits.square().mean()) / 4 + 0.01 * logits.abs().sum()
            sizes.append(logits.square().sum() if slow is None else 0.5 * slow + 0.5 * logits.square().sum())
        loss = loss + 0.1 * sum(sizes) / 4
        loss.backward()
        slow = (sum(sizes) / 3).detach()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), cases.MAX_NORM)
        optimizer.step()
    assert_equal(model.layers, expected)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("penalizes", [False, True])
def test_norms_and_values_are_those_of_the_batches_that_count(tmp_path: Path, penalizes: bool) -> None:
    model = Skips(cases.terms(), norms_at="logits")
    model.skipped, model.penalizes = (0,), penalizes
    trainer = cases.trainer(tmp_path, accumulate_grad_batches=2)
    trainer.fit(model, cases.loader(cases.points(2)))
    network, (_, (x, y)) = cases.network(), list(cases.loader(cases.points(2)))
    logits = network(x)
    expected = {
        "loss/decay": sum(p.square().sum() for p in network.parameters()).item(),
        "loss/size": logits.abs().sum().item(),
        "loss/base_loss": mse_loss(logits, y).item() / 2,
        "grad_norm/base_loss": (2 * (logits - y) / cases.ROWS).norm().item(),
    }
    assert {name: float(trainer.logged_metrics[name]) for name in expected} == pytest.approx(expected)


def test_a_sink_sees_each_step_once(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    def listen(event: str, measurements: Any, metadata: Any) -> None:
        seen.append((metadata["step"], float(measurements["loss_total"])))

    handler = telemetry.attach(listen, ("pipeline.stop", "gradients.stop"))
    try:
        model = cases.Model(cases.terms(), norms_at="logits")
        cases.trainer(tmp_path, accumulate_grad_batches=4).fit(model, cases.loader(cases.points(12)))
    finally:
        telemetry.detach(handler)
    _, losses = cases.by_hand(cases.windows(12, 4), 4)
    assert seen == [(step, pytest.approx(loss)) for step, loss in enumerate(losses)]


# Of PyTorch's compiler itself, where a graph ends.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_module_is_compiled_once(tmp_path: Path) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    plain, module = cases.Model(cases.terms()), cases.Model(cases.terms())
    for model in (plain, torch.compile(module, backend=backend)):
        cases.trainer(tmp_path, accumulate_grad_batches=4).fit(model, cases.loader(cases.points(10)))
    torch.compiler.reset()
    assert len(graphs) == 1
    assert module.losses == plain.losses


def test_validation_has_the_loss_alone(tmp_path: Path) -> None:
    model = cases.Model(cases.terms())
    data = cases.points(2)
    trainer = cases.trainer(tmp_path)
    found = trainer.validate(model, cases.loader(data), verbose=False)
    x, y = data.tensors
    assert found[0]["held_out"] == pytest.approx(mse_loss(model.layers(x), y).item())


def test_the_callback_alone(tmp_path: Path) -> None:
    callback = integration.PenaltiesCallback(cases.terms())

    class Plain(cases.lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = cases.network()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.layers(batch[0])
            return callback.penalize(self, mse_loss(logits, batch[1]), {"logits": logits})

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=cases.LEARNING_RATE)

    model = Plain()
    cases.trainer(tmp_path, callbacks=[callback], accumulate_grad_batches=4).fit(model, cases.loader(cases.points(40)))
    assert_equal(model.layers, cases.by_hand(cases.windows(40, 4), 4)[0])
    with pytest.raises(pn.InputError, match="the trainer does not know of the callback"):
        cases.trainer(tmp_path).fit(Plain(), cases.loader(cases.points(4)))


class TestMistakes:
    def fit(self, tmp_path: Path, model: Any) -> None:
        cases.trainer(tmp_path).fit(model, cases.loader(cases.points(4)))

    def test_a_step_that_adds_no_terms(self, tmp_path: Path) -> None:
        class Forgotten(cases.Model):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return mse_loss(self.layers(batch[0]), batch[1])

        with pytest.raises(pn.InputError, match="training_step did not call penalize"):
            self.fit(tmp_path, Forgotten(cases.terms()))

    def test_a_step_that_adds_them_twice(self, tmp_path: Path) -> None:
        class Twice(cases.Model):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                return super().training_step(batch, batch_idx) + super().training_step(batch, batch_idx)

        with pytest.raises(pn.InputError, match="called twice in one training step"):
            self.fit(tmp_path, Twice(cases.terms()))

    def test_manual_optimization(self, tmp_path: Path) -> None:
        model = cases.Model(cases.terms())
        model.automatic_optimization = False
        with pytest.raises(pn.OptionError, match="automatic_optimization=False; expected True"):
            cases.trainer(tmp_path, gradient_clip_val=None).fit(model, cases.loader(cases.points(4)))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"pipeline": "l1"}, "expected a Pipeline"),
            ({"pipeline": cases.terms().with_base("l2")}, "expected one without a base"),
            ({"pipeline": cases.terms(), "cosines": 1}, "cosines=1; expected True or False"),
            ({"pipeline": cases.terms(), "norms_at": "hidden"}, "expected None, or an input that a term reads: logits"),
        ],
    )
    def test_wrong_arguments(self, arguments: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=message):
            cases.Model(**arguments)

    def test_without_lightning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        integration.callback_class.cache_clear()
        monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
        monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
        with pytest.raises(pn.MissingLibraryError, match=r'pip install "penalties\[lightning\]"'):
            integration.PenaltiesCallback(cases.terms())
        monkeypatch.undo()
        integration.callback_class.cache_clear()
