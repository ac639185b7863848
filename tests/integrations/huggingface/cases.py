"""Small models, data and terms, and what the trainers and the loops by hand share."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM, Trainer, TrainingArguments

import penalties as pn
from penalties.integrations.huggingface import PenaltiesMixin

VOCABULARY = 13
LENGTH = 6
ROWS = 2
STEPS = 10
LEARNING_RATE = 0.1
MAX_NORM = 1.0


class PenalizedTrainer(PenaltiesMixin, Trainer):
    """What a user writes."""


class Regressor(nn.Module):
    """A model whose forward takes no keyword arguments, so that the trainer counts micro-batches rather than items."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def language_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.3,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config)


def tokens(rows: int) -> list[dict[str, Tensor]]:
    """Sequences whose labels count for between one and all positions."""
    generator = torch.Generator().manual_seed(1)
    data = []
    for row in range(rows):
        ids = torch.randint(1, VOCABULARY, (LENGTH,), generator=generator)
        labels = ids.clone()
        labels[: row % LENGTH] = -100
        data.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return data


def points(rows: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(3, generator=generator), "labels": torch.randn(1, generator=generator)} for _ in range(rows)
    ]


def language_pipeline(*more: pn.Term) -> pn.Pipeline:
    """A term of each scope, and one of your own."""
    return pn.Pipeline(
        [
            pn.Term(pn.l2, name="decay", weight=0.01, inputs="params"),
            pn.Term(
                pn.entropy,
                name="confidence",
                weight=0.3,
                inputs={"p": "logits", "mask": "mask"},
                options={"mode": "bonus", "logits": True},
            ),
            pn.Term(pn.l2, name="size", weight=1e-3, inputs="logits"),
            pn.Term(spread, weight=0.1, inputs="hidden_states.1", scope="mean"),
            *more,
        ]
    )


def spread(hidden: Tensor) -> Tensor:
    return hidden.square().mean()


def points_pipeline(*more: pn.Term) -> pn.Pipeline:
    return pn.Pipeline(
        [
            pn.Term(pn.l2, name="decay", weight=0.01, inputs="params"),
            pn.Term(pn.l1, name="size", weight=0.01, inputs="logits"),
            pn.Term(pn.l2, name="level", weight=0.1, inputs="logits", options={"reduction": "mean"}),
            *more,
        ]
    )


def arguments(folder: Path | str, accumulation: int, **more: Any) -> TrainingArguments:
    given = {
        "output_dir": str(folder),
        "per_device_train_batch_size": ROWS,
        "gradient_accumulation_steps": accumulation,
        "max_steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "max_grad_norm": MAX_NORM,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**given, **more})


def windows(data: list[Any], accumulation: int, ranks: int, steps: int = STEPS) -> list[list[list[dict[str, Tensor]]]]:
    """The micro-batches of each optimizer step and rank, as the trainer deals them out, epoch after epoch."""
    batches = [
        {name: torch.stack([row[name] for row in data[i : i + ROWS]]) for name in data[0]}
        for i in range(0, len(data), ROWS)
    ]
    dealt = [batches[rank::ranks] for rank in range(ranks)]
    epoch = [[mine[start : start + accumulation] for mine in dealt] for start in range(0, len(dealt[0]), accumulation)]
    return [epoch[step % len(epoch)] for step in range(steps)]
