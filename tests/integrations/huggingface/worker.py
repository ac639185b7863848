"""One of two processes that train together; torchrun starts it. Saves the parameters and logs of every run."""

import sys
from pathlib import Path

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

import penalties as pn
from penalties import telemetry

from ..torchrun import leave
from . import cases

LANGUAGE = [(accumulation, across) for accumulation in (1, 4, 8) for across in (True, False)]
POINTS = (1, 4, 8)
NORMS = (True, False)
BATCHES = 36


def stateful() -> pn.Term:
    return pn.EMA(pn.Term(pn.l2, name="slow", weight=0.1, inputs="logits", scope="mean"), decay=0.5)


def main(folder: Path) -> None:
    runs = {}
    for accumulation, across in LANGUAGE:
        trainer = cases.PenalizedTrainer(
            cases.language_model(),
            cases.arguments(folder / "run", accumulation, average_tokens_across_devices=across),
            train_dataset=cases.tokens(BATCHES * cases.ROWS),
            pipeline=cases.language_pipeline(),
        )
        runs[f"language {accumulation} {across}"] = finished(trainer)
    for across in NORMS:
        trainer = cases.PenalizedTrainer(
            cases.language_model(),
            cases.arguments(folder / "run", 1, average_tokens_across_devices=across, max_steps=1),
            train_dataset=cases.tokens(BATCHES * cases.ROWS),
            pipeline=cases.language_pipeline(),
            norms_at="params",
        )
        runs[f"norms {across}"] = finished(trainer)
    for accumulation in POINTS:
        trainer = cases.PenalizedTrainer(
            cases.Regressor(),
            cases.arguments(folder / "run", accumulation),
            train_dataset=cases.points(BATCHES * cases.ROWS),
            pipeline=cases.points_pipeline(),
        )
        runs[f"points {accumulation}"] = finished(trainer)
    for name, resume in (("whole", None), ("saved", None), ("resumed", folder / "state" / "checkpoint-4")):
        stops = 4 if name == "saved" else 10
        trainer = cases.PenalizedTrainer(
            cases.Regressor(),
            cases.arguments(folder / "state", 2, max_steps=stops, save_strategy="steps", save_steps=4),
            train_dataset=cases.points(BATCHES * cases.ROWS),
            pipeline=cases.points_pipeline(stateful()),
        )
        runs[name] = finished(trainer, None if resume is None else str(resume))
    model = cases.Regressor()
    model.layers[0] = FullyShardedDataParallel(model.layers[0], device_id=torch.device("cpu"))
    arguments = cases.arguments(folder / "run", 1)
    data = cases.points(BATCHES * cases.ROWS)
    trainer = cases.PenalizedTrainer(model, arguments, train_dataset=data, pipeline=cases.points_pipeline())
    try:
        trainer.train()
    except pn.OptionError as error:
        runs["FSDP1"] = str(error)
    torch.save(runs, folder / f"rank{trainer.args.process_index}.pt")


def finished(trainer: cases.PenalizedTrainer, resume: str | None = None) -> dict[str, object]:
    announced: list[dict[str, float]] = []
    handler = telemetry.attach(
        lambda event, measured, metadata: announced.append(metadata["output"].metrics()), ["pipeline.stop"]
    )
    trainer.train(resume_from_checkpoint=resume)
    telemetry.detach(handler)
    return {
        "announced": announced,
        "output": trainer.loss_output.metrics(),
        "parameters": {name: p.detach().clone() for name, p in trainer.model.state_dict().items()},
        "logs": trainer.state.log_history,
        "ranks": trainer.accelerator.num_processes,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave()
