"""A step of Hugging Face's Trainer with four terms, against the same terms written into `compute_loss` by hand."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import penalties as pn

from .harness import FIXED_ALLOCATOR, Row, compare, in_process
from .loop import VOCABULARY, save_model

__all__ = ["run"]

ROWS = 4
LENGTH = 32
CASES = {"one micro-batch": 1, "four micro-batches": 4}

PIPELINE = pn.Pipeline(
    [
        pn.Term(pn.l2, name="decay", weight=1e-6, inputs="params"),
        pn.Term(pn.entropy, weight=1e-2, inputs="logits", options={"logits": True, "mode": "bonus"}),
        pn.Term(pn.l2, name="size", weight=1e-6, inputs="logits", options={"reduction": "mean"}),
        pn.Term(pn.l1, name="activity", weight=1e-6, inputs="hidden_states.2", options={"reduction": "mean"}),
    ]
)


def run(scale: float) -> list[Row]:
    return in_process("benchmarks.huggingface:rows", scale, FIXED_ALLOCATOR)


def rows(scale: float) -> list[Row]:
    return [row(case, accumulation, scale) for case, accumulation in CASES.items()]


def row(case: str, accumulation: int, scale: float) -> Row:
    # Setting up a trainer takes as long as six of its micro-batches.
    steps = 48 // accumulation if scale else 1
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / "model")
        by_hand, mixed = trainers(Path(folder), accumulation, steps)
        np.testing.assert_allclose(by_hand.train().training_loss, mixed.train().training_loss, rtol=1e-5)
        return compare(
            f"a step with four terms, {case}",
            by_hand.train,
            mixed.train,
            seconds=60.0 * scale,
            unit="ms",
            each=steps,
            most_ratio=1.03,
        )


def trainers(folder: Path, accumulation: int, steps: int) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, PrinterCallback, Trainer, TrainingArguments

    from penalties.integrations.huggingface import PenaltiesMixin

    class ByHand(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None):
            batch = {**inputs, "output_hidden_states": True}
            loss, outputs = super().compute_loss(model, batch, True, num_items_in_batch)
            share = (inputs["labels"][..., 1:] != -100).sum() / num_items_in_batch
            loss = loss + 1e-2 * share * pn.entropy(outputs.logits, logits=True, mode="bonus")
            loss = loss + 1e-6 * share * pn.l2(outputs.logits, reduction="mean")
            loss = loss + 1e-6 * share * pn.l1(outputs.hidden_states[2], reduction="mean")
            return loss + 1e-6 / self.current_gradient_accumulation_steps * pn.l2(model.parameters())

    class Mixed(PenaltiesMixin, Trainer):
        pass

    torch.manual_seed(0)
    ids = torch.randint(VOCABULARY, (ROWS * accumulation * steps, LENGTH))
    data: list[dict[str, Tensor]] = [{"input_ids": row, "labels": row} for row in ids]
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=accumulation,
        max_steps=steps,
        learning_rate=1e-6,
        logging_steps=steps,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    made = []
    for kind, more in ((ByHand, {}), (Mixed, {"pipeline": PIPELINE})):
        model = AutoModelForCausalLM.from_pretrained(folder / "model")
        trainer = kind(model, arguments, train_dataset=data, **more)
        trainer.remove_callback(PrinterCallback)
        made.append(trainer)
    return tuple(made)
