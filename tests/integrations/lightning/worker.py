"""One of two processes that train together; torchrun starts it. Saves the parameters and what was logged."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import Subset

import penalties as pn
from penalties import telemetry
from penalties.backends.torch.sharded import whole

from ..torchrun import leave
from . import cases

ModelParallelStrategy = cases.lightning.strategies.ModelParallelStrategy

EPOCHS = {1: 1, 4: 4, 8: 5}
"""By the number of micro-batches: at least ten steps, with a shorter last window in each epoch."""
BATCHES = 10


SHARDED = [(by_layer, accumulation) for by_layer in (True, False) for accumulation in (1, 4)]
"""Under FSDP2, where some shards are empty: the last layer has one row."""


class OfOld(cases.Model):
    """Under FSDP1."""

    def configure_model(self) -> None:
        if not isinstance(self.layers[0], FullyShardedDataParallel):
            self.layers[0] = FullyShardedDataParallel(self.layers[0], device_id=torch.device("cpu"))


class Sharded(cases.Model):
    """Under FSDP2, by Lightning's own hook for it."""

    by_layer = False
    """After the forward, parameters of the whole are still gathered, those of its layers are not."""

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for layer in (self.layers[0], self.layers[2]) if self.by_layer else ():
            fully_shard(layer, mesh=mesh)
        fully_shard(self.layers, mesh=mesh)


class ShardedByLayer(Sharded):
    by_layer = True


class InTensorParallel(cases.Model):
    """Both processes have the same batches."""

    def configure_model(self) -> None:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(self.layers, self.device_mesh["tensor_parallel"], plan)


def stateful() -> pn.Term:
    return pn.EMA(pn.Term(pn.l2, name="slow", weight=0.1, inputs="logits", scope="mean"), decay=0.5)


def main(folder: Path) -> None:
    runs: dict[Any, Any] = {}
    for accumulation, epochs in EPOCHS.items():
        runs[accumulation] = finished(folder, cases.terms(), accumulate_grad_batches=accumulation, max_epochs=epochs)
    for by_layer, accumulation in SHARDED:
        kind = ShardedByLayer if by_layer else Sharded
        options = {"accumulate_grad_batches": accumulation, "max_epochs": EPOCHS[accumulation]}
        runs[f"sharded {by_layer} {accumulation}"] = finished(folder, cases.terms(), kind=kind, **options)
    runs["norms"] = finished(folder, cases.terms(), limit_train_batches=1, norms_at="params")
    saved = folder / "saved.ckpt"
    for name, epochs, resume in (("whole", 4, None), ("saved", 2, None), ("resumed", 4, saved)):
        options = {"accumulate_grad_batches": 4, "max_epochs": epochs}
        runs[name] = finished(folder, cases.terms(stateful()), resume=resume, save=saved, **options)
    for name, kind in (("FSDP1", OfOld), ("tensor", InTensorParallel)):
        try:
            finished(folder, cases.terms(), kind=kind)
        except pn.OptionError as error:
            runs[name] = str(error)
    torch.save(runs, folder / f"rank{runs[1]['rank']}.pt")


def finished(
    folder: Path,
    terms: pn.Pipeline,
    *,
    kind: type[cases.Model] = cases.Model,
    norms_at: str | None = None,
    resume: Path | None = None,
    save: Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    model = kind(terms, norms_at=norms_at)
    strategy: Any = "ddp"
    if issubclass(kind, Sharded | InTensorParallel):
        replicas = 2 if issubclass(kind, Sharded) else 1
        strategy = ModelParallelStrategy(data_parallel_size=replicas, tensor_parallel_size=2 // replicas)
    trainer = cases.trainer(folder, devices=2, strategy=strategy, use_distributed_sampler=False, **options)
    data = cases.points(2 * BATCHES)
    announced: list[dict[str, float]] = []
    handler = telemetry.attach(
        lambda event, measured, metadata: announced.append(metadata["output"].metrics()), ["pipeline.stop"]
    )
    # Rows in turn; Lightning's own sampler shuffles them.
    mine = Subset(data, range(trainer.global_rank, len(data), 2))
    trainer.fit(model, cases.loader(mine), ckpt_path=resume, weights_only=False if resume else None)
    telemetry.detach(handler)
    if save is not None and resume is None:
        trainer.save_checkpoint(save)
    return {
        "rank": trainer.global_rank,
        "parameters": [whole(p.detach()).clone() for p in model.layers.parameters()],
        "announced": announced,
        "output": model.loss_output.metrics(),
        "logged": {name: float(value) for name, value in trainer.logged_metrics.items()},
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()
