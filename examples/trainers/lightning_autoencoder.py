"""Train a small autoencoder with Lightning whose code uses few dimensions, four micro-batches to a step.

Twelve numbers are made from three that are hidden. An autoencoder with a code of eight spreads them over all eight; a
penalty on the code leaves three. Run it with `python examples/trainers/lightning_autoencoder.py`; it needs
`pip install "penalties[lightning]"` and nothing from the network.
"""

import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import penalties as pn
from penalties.integrations.lightning import PenaltiesMixin

EPOCHS = 200
ACCUMULATION = 4
ROWS = 256


def group_norm(code: Tensor) -> Tensor:
    """The sum over dimensions of the code of each one's root mean square: whole dimensions go to zero."""
    return (code.square().mean(0) + 1e-8).sqrt().sum()


PIPELINE = pn.Pipeline(
    [
        # Of each micro-batch, and so averaged over them.
        pn.Term(group_norm, name="code", weight=0.1, inputs="code", scope="mean"),
        # Of the parameters, and so once a step: without it the decoder grows while the code shrinks.
        pn.Term(pn.l2, name="decay", weight=5e-3, inputs="params"),
    ]
)


class Autoencoder(PenaltiesMixin, pl.LightningModule):
    """Linear, with a code of eight dimensions."""

    def __init__(self, pipeline: pn.Pipeline) -> None:
        super().__init__(pipeline=pipeline)
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(12, 8), nn.Linear(8, 12)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        (x,) = batch
        code = self.encoder(x)
        return self.penalize(mse_loss(self.decoder(code), x), code=code)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def data(count: int, seed: int) -> Tensor:
    mixing = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)) @ mixing


def train(pipeline: pn.Pipeline, x: Tensor) -> Autoencoder:
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accumulate_grad_batches=ACCUMULATION,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Autoencoder(pipeline)
    trainer.fit(model, DataLoader(TensorDataset(x), batch_size=ROWS // ACCUMULATION))
    return model


@torch.no_grad()
def summary(model: Autoencoder, x: Tensor) -> str:
    code = model.encoder(x)
    used = int((code.std(0) > 0.05).sum())
    explained = 1 - (mse_loss(model.decoder(code), x) / x.var()).item()
    return f"dimensions in use {used} of 8, variance explained {explained:6.1%}"


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # Lightning's own: advice for larger data, and what it uses of PyTorch.
    warnings.filterwarnings("ignore", ".*does not have many workers")
    warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")
    warnings.filterwarnings("ignore", ".*The number of training batches")
    x, unseen = data(ROWS, 1), data(1000, 2)
    print(f"without penalties: {summary(train(PIPELINE.disable(*PIPELINE.names), x), unseen)}")
    penalised = train(PIPELINE, x)
    print(f"with penalties:    {summary(penalised, unseen)}")
    print(penalised.loss_output)


if __name__ == "__main__":
    main()
