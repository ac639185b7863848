"""What trainers do beside plain training: search for a learning rate or a batch size, and skip steps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import penalties as pn
from penalties import telemetry

from . import cases

pytestmark = [
    # Lightning's own advice.
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory"),
]


def slow() -> pn.Term:
    return pn.EMA(pn.Term(pn.l2, name="slow", weight=0.1, inputs="logits", scope="mean"), decay=0.5)


class Tuned(cases.Model):
    """With what Lightning looks for."""

    lr = cases.LEARNING_RATE
    batch_size = cases.ROWS
    returned: Any = ()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.returned = (*self.returned, loss.item())
        return loss

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(cases.points(12), batch_size=self.batch_size)

    val_dataloader = train_dataloader


def searched(tmp_path: Path, model: Tuned, what: str) -> tuple[Any, Any, list[int]]:
    """A trainer that has searched, what it found, and the steps that were announced."""
    trainer = cases.trainer(tmp_path, accumulate_grad_batches=2)
    tuner = cases.lightning.tuner.Tuner(trainer)
    steps: list[int] = []
    handler = telemetry.attach(lambda event, measured, metadata: steps.append(metadata["step"]), ["pipeline.stop"])
    try:
        if what == "lr":
            found = tuner.lr_find(model, num_training=5, update_attr=False, early_stop_threshold=None)
        else:
            found = tuner.scale_batch_size(model, max_trials=2, steps_per_trial=2)
    finally:
        telemetry.detach(handler)
    return trainer, found, steps


def test_the_search_for_a_learning_rate_has_the_terms_and_leaves_nothing_behind(tmp_path: Path) -> None:
    model, plain = Tuned(cases.terms(slow())), Tuned(cases.terms(slow()))
    trainer, found, steps = searched(tmp_path, model, "lr")
    # Lightning halves what each of the two micro-batches returns; the first has the terms of the parameters.
    ((x, y),), _ = cases.windows(12, 2)[0]
    logits = plain.layers(x)
    terms = 0.01 * 2 * logits.abs().sum() + 0.1 * logits.square().mean() + 0.1 * logits.square().sum()
    decay = 0.01 * 2 * sum(p.square().sum() for p in plain.layers.parameters())
    first = torch.nn.functional.mse_loss(logits, y) + terms + decay
    assert model.returned[0] == pytest.approx(first.item())
    assert len(found.results["loss"]) == 5
    assert steps == []
    trainer.fit(model)
    cases.trainer(tmp_path, accumulate_grad_batches=2).fit(plain)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    assert model.loss_output.metrics() == plain.loss_output.metrics()


def test_the_search_for_a_batch_size_has_the_terms(tmp_path: Path) -> None:
    model = Tuned(cases.terms(slow()))
    model.batch_size = 2
    _, found, steps = searched(tmp_path, model, "batch size")
    assert found > 2
    assert steps == []
    assert "slow" in model.loss_output.names


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_step_that_a_loss_scaler_skips_leaves_the_state(tmp_path: Path, accumulation: int) -> None:
    def counting(logits: Any, state: Any = None) -> pn.Evaluation:
        seen.append(state)
        return pn.Evaluation(logits.sum(), state=(0.0 if state is None else state) + logits.detach().sum())

    seen: list[Any] = []
    x, y = cases.points(3 * accumulation).tensors
    # The second step.
    x[2 * accumulation : 4 * accumulation] = torch.inf
    pipeline = pn.Pipeline([pn.Term(counting, 0.1, inputs="logits", scope="mean")])
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    precision = cases.lightning.plugins.MixedPrecision("16-mixed", "cpu", scaler=scaler)
    trainer = cases.trainer(tmp_path, plugins=[precision], accumulate_grad_batches=accumulation)
    model = cases.Model(pipeline)
    model.layers = torch.nn.Sequential(torch.nn.Linear(3, 1)).double()
    trainer.fit(model, cases.loader(TensorDataset(x, y)))
    assert scaler.get_scale() < 8.0
    first, skipped, third = seen[0], seen[accumulation], seen[2 * accumulation]
    assert first is None
    assert torch.isfinite(skipped)
    assert torch.equal(third, skipped)
