"""A small model, data and terms, and the loop by hand that Lightning is compared with."""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import penalties as pn

with warnings.catch_warnings():
    # Of its own imports.
    warnings.simplefilter("ignore")
    import lightning.pytorch as lightning

from penalties.integrations.lightning import PenaltiesMixin

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

ROWS = 2
LEARNING_RATE = 0.1
MAX_NORM = 1.0


def terms(*more: pn.Term) -> pn.Pipeline:
    """A term of each scope."""
    return pn.Pipeline(
        [
            pn.Term(pn.l2, name="decay", weight=0.01, inputs="params"),
            pn.Term(pn.l1, name="size", weight=0.01, inputs="logits"),
            pn.Term(pn.l2, name="level", weight=0.1, inputs="logits", options={"reduction": "mean"}),
            *more,
        ]
    )


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


class Model(PenaltiesMixin, lightning.LightningModule):
    """What a user writes."""

    def __init__(self, pipeline: pn.Pipeline, **more: Any) -> None:
        super().__init__(pipeline=pipeline, **more)
        self.layers = network()
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.layers(x)
        return self.penalize(mse_loss(logits, y), logits=logits)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.loss_output is not None:
            self.losses.append(self.loss_output.read().total)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self.layers(x)
        self.log("held_out", self.penalize(mse_loss(logits, y), logits=logits))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)


def points(batches: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(batches * ROWS, n, dtype=torch.float64, generator=generator) for n in (3, 1))
    return TensorDataset(x, y)


class Stream(IterableDataset[Any]):
    """The same without a length."""

    def __init__(self, batches: int) -> None:
        self.data = points(batches)

    def __iter__(self) -> Any:
        return iter([self.data[index] for index in range(len(self.data))])


def loader(data: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=ROWS, shuffle=False)


def trainer(folder: Path | str, **more: Any) -> Any:
    given: dict[str, Any] = {
        "default_root_dir": str(folder),
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "gradient_clip_val": MAX_NORM,
        "log_every_n_steps": 1,
    }
    return lightning.Trainer(**{**given, **more})


def by_hand(epochs: list[list[list[Any]]], nominal: int) -> tuple[nn.Module, list[float]]:
    """Windows of micro-batches, each with those of all ranks: Lightning divides its loss by the nominal number."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for window in epochs:
        optimizer.zero_grad()
        ranks = len(window[0])
        loss = 0.01 * sum(p.square().sum() for p in model.parameters())
        for micro in window:
            for x, y in micro:
                logits = model(x)
                loss = loss + mse_loss(logits, y) / (nominal * ranks)
                loss = loss + 0.01 * logits.abs().sum() + 0.1 * logits.square().mean() / (len(window) * ranks)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        losses.append(loss.item())
    return model, losses


def windows(batches: int, nominal: int, ranks: int = 1) -> list[list[list[Any]]]:
    """The windows of an epoch, with rows dealt to ranks in turn."""
    data = points(batches * ranks)
    shares = [list(range(rank, len(data), ranks)) for rank in range(ranks)]
    micro = [[data[share[start : start + ROWS]] for share in shares] for start in range(0, len(shares[0]), ROWS)]
    return [micro[start : start + nominal] for start in range(0, len(micro), nominal)]
