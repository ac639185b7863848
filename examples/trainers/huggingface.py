"""Train a classifier on noisy labels with Hugging Face's Trainer, four micro-batches to a step, and two penalties.

Two of thirty inputs decide the class, and a quarter of the labels are wrong: the Trainer alone learns the wrong labels
by heart. Run it with `python examples/trainers/huggingface.py`; it needs `pip install "penalties[huggingface]"` and
nothing from the network.
"""

import tempfile
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PrinterCallback, Trainer, TrainingArguments

import penalties as pn
from penalties.integrations.huggingface import PenaltiesMixin

STEPS = 200
ACCUMULATION = 4

PIPELINE = pn.Pipeline(
    [
        # Few weights that are not small: most inputs say nothing about the class. It reads parameters only, so it
        # counts once in each optimizer step. It waits until the network has found something.
        pn.Term(pn.l1, name="sparsity", weight=pn.schedules.warmup(0.025, steps=100), inputs="params"),
        # Less certainty than the labels suggest, because some of them are wrong: minus the mean entropy. It is a mean
        # over examples, so it is averaged over the micro-batches.
        pn.Term(pn.entropy, name="confidence", weight=0.2, inputs="logits", options={"mode": "bonus", "logits": True}),
    ]
)


class PenalizedTrainer(PenaltiesMixin, Trainer):
    """The Trainer, with terms in its loss, its logs and its checkpoints."""


class Classifier(nn.Module):
    """One hidden layer, with the loss inside, as models of transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(30, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def examples(count: int, wrong: float, generator: Generator) -> list[dict[str, Tensor]]:
    """Points whose class is the sign of the sum of their first two coordinates; some labels are flipped."""
    x = torch.randn(count, 30, generator=generator)
    flipped = torch.rand(count, generator=generator) < wrong
    labels = (x[:, 0] + x[:, 1] > 0).long() ^ flipped.long()
    return [{"x": row, "labels": label} for row, label in zip(x, labels, strict=True)]


def train(pipeline: pn.Pipeline, data: list[dict[str, Tensor]]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=len(data) // ACCUMULATION,
            gradient_accumulation_steps=ACCUMULATION,
            max_steps=STEPS,
            learning_rate=0.01,
            lr_scheduler_type="constant",
            logging_steps=50,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = PenalizedTrainer(Classifier(), arguments, train_dataset=data, pipeline=pipeline)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer


@torch.no_grad()
def summary(model: nn.Module, data: list[dict[str, Tensor]]) -> str:
    """The result, on unseen points with correct labels."""
    x, labels = (torch.stack([row[name] for row in data]) for name in ("x", "labels"))
    accuracy = (model(x, labels)["logits"].argmax(-1) == labels).double().mean().item()
    used = model.layers[0].weight.abs().amax(0)
    return f"test accuracy {accuracy:6.1%}, inputs in use {int((used > 0.1).sum()):2d} of 30"


def main() -> None:
    generator = Generator().manual_seed(0)
    data, test = examples(400, 0.25, generator), examples(2000, 0.0, generator)
    penalised = train(PIPELINE, data)
    keys = ("loss", "loss/base_loss", "loss/sparsity/weighted", "loss/confidence/weighted")
    print("step  " + " ".join(f"{key:>24}" for key in keys))
    for entry in penalised.state.log_history:
        if "loss" in entry:
            print(f"{entry['step']:4d}  " + " ".join(f"{entry[key]:24.4f}" for key in keys))
    plain = train(PIPELINE.disable(*PIPELINE.names), data)
    print(f"\nwithout penalties: {summary(plain.model, test)}")
    print(f"with penalties:    {summary(penalised.model, test)}")


if __name__ == "__main__":
    main()
