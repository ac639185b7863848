"""TRL's trainers with a pipeline, and the loops by hand that they are compared with."""

from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid
from transformers import PreTrainedTokenizerFast

import penalties as pn
from penalties.integrations.huggingface import PenaltiesMixin

from . import cases

DECAY = pn.Term(pn.l2, name="decay", weight=0.01, inputs="params")
WORDS = ["<pad>", "<end>", *"abcdefghijklmnopqrstuvwxyz"][: cases.VOCABULARY]


class PenalizedSFTTrainer(PenaltiesMixin, trl.SFTTrainer):
    pass


class PenalizedDPOTrainer(PenaltiesMixin, trl.DPOTrainer):
    pass


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<pad>")


def uncertainty(entropy: Tensor, counts: Tensor) -> Tensor:
    """The mean entropy of the tokens that count; it is 0 at the others."""
    return entropy.sum() / counts.sum()


def fluency(logprobs: Tensor) -> Tensor:
    return -logprobs.mean()


def shared(folder: Path, accumulation: int) -> dict[str, Any]:
    found = cases.arguments(folder, accumulation).to_dict()
    names = ("output_dir", "per_device_train_batch_size", "max_steps", "learning_rate", "max_grad_norm", "optim")
    return {name: found[name] for name in names} | {
        "gradient_accumulation_steps": accumulation,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "max_length": None,
    }


def supervised(folder: Path, accumulation: int, rows: int) -> PenalizedSFTTrainer:
    columns = [{"input_ids": row["input_ids"].tolist(), "labels": row["labels"].tolist()} for row in cases.tokens(rows)]
    names = {"entropy": "outputs.entropy", "counts": "outputs.label_mask"}
    return PenalizedSFTTrainer(
        cases.language_model(),
        trl.SFTConfig(**shared(folder, accumulation)),
        train_dataset=Dataset.from_list(columns),
        processing_class=tokenizer(),
        pipeline=pn.Pipeline([DECAY, pn.Term(uncertainty, weight=0.3, inputs=names, scope="mean")]),
    )


def supervised_by_hand(accumulation: int, rows: int, ranks: int = 1) -> tuple[nn.Module, list[float]]:
    """Tokens of all ranks are the denominator."""
    model = cases.language_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=cases.LEARNING_RATE)
    losses = []
    for step in cases.windows(cases.tokens(rows), accumulation, ranks):
        batches = [batch for mine in step for batch in mine]
        total = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
        loss = 0.01 * sum(p.square().sum() for p in model.parameters())
        for batch in batches:
            logp, labels = logprobs_of(model, batch["input_ids"]), batch["labels"][:, 1:]
            counts = labels != -100
            picked = logp.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
            entropy = -(logp.exp() * logp).sum(-1)
            loss = loss - (picked * counts).sum() / total + 0.3 * (entropy * counts).sum() / total
        losses.append(loss.item())
        stepped(model, optimizer, loss)
    return model, losses


def preferring(folder: Path, accumulation: int, rows: int) -> PenalizedDPOTrainer:
    texts = [[WORDS[token] for token in row["input_ids"]] for row in _answers(rows)]
    columns = [
        {"prompt": " ".join(text[:2]), "chosen": f" {text[2]} {text[3]}", "rejected": f" {text[4]} {text[5]}"}
        for text in texts
    ]
    return PenalizedDPOTrainer(
        cases.language_model(),
        ref_model=cases.language_model(),
        args=trl.DPOConfig(**shared(folder, accumulation)),
        train_dataset=Dataset.from_list(columns),
        processing_class=tokenizer(),
        pipeline=pn.Pipeline([DECAY, pn.Term(fluency, weight=0.1, inputs="outputs.log_probs", scope="mean")]),
    )


def preferring_by_hand(accumulation: int, rows: int, ranks: int = 1) -> tuple[nn.Module, list[float]]:
    """Micro-batches of all ranks count equally."""
    model, initial = cases.language_model(), cases.language_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=cases.LEARNING_RATE)
    losses = []
    for step in cases.windows(_answers(rows), accumulation, ranks):
        batches = [batch for mine in step for batch in mine]
        loss = 0.01 * sum(p.square().sum() for p in model.parameters())
        for batch in batches:
            policy = _chosen_and_rejected(model, batch["input_ids"])
            with torch.no_grad():
                before = _chosen_and_rejected(initial, batch["input_ids"])
            chosen, rejected = (policy - before).sum(1).chunk(2)
            loss = loss - logsigmoid(0.1 * (chosen - rejected)).mean() / len(batches)
            loss = loss - 0.1 * policy.mean() / len(batches)
        losses.append(loss.item())
        stepped(model, optimizer, loss)
    return model, losses


def _answers(rows: int) -> list[dict[str, Tensor]]:
    """Without the token that ends a text, which the trainer appends."""
    return [{"input_ids": row["input_ids"].clamp(min=2)} for row in cases.tokens(rows)]


def _chosen_and_rejected(model: nn.Module, ids: Tensor) -> Tensor:
    """Log-probabilities of both answers, and before each of them 0 for the prompt."""
    end = torch.ones_like(ids[:, :1])
    texts = torch.cat([torch.cat([ids[:, :2], answer, end], 1) for answer in (ids[:, 2:4], ids[:, 4:])])
    picked = logprobs_of(model, texts).gather(-1, texts[:, 1:, None])[..., 0]
    return torch.cat([torch.zeros_like(picked[:, :1]), picked[:, 1:]], 1)


def logprobs_of(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids, attention_mask=torch.ones_like(ids)).logits[:, :-1]
    return log_softmax(logits, -1)


def stepped(model: nn.Module, optimizer: Any, loss: Tensor) -> None:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), cases.MAX_NORM)
    optimizer.step()
    optimizer.zero_grad()
