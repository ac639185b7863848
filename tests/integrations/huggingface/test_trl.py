"""The mixin in TRL's trainers: parameters after ten steps equal those of a loop by hand."""

from pathlib import Path
from typing import Any

import pytest
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
from .test_trainer import assert_equal

DECAY = pn.Term(pn.l2, name="decay", weight=0.01, inputs="params")
ROWS = 18 * cases.ROWS
WORDS = ["<pad>", "<end>", *"abcdefghijklmnopqrstuvwxyz"][: cases.VOCABULARY]


class PenalizedSFTTrainer(PenaltiesMixin, trl.SFTTrainer):
    pass


class PenalizedDPOTrainer(PenaltiesMixin, trl.DPOTrainer):
    pass


@pytest.fixture(scope="module")
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


def logprobs_of(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids, attention_mask=torch.ones_like(ids)).logits[:, :-1]
    return log_softmax(logits, -1)


def stepped(model: nn.Module, optimizer: Any, loss: Tensor) -> None:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), cases.MAX_NORM)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("accumulation", [1, 4, 8])
def test_supervised_tuning_is_as_by_hand(accumulation: int, tmp_path: Path, tokenizer: Any):
    model, expected = cases.language_model(), cases.language_model()
    data = cases.tokens(ROWS)
    columns = [{"input_ids": row["input_ids"].tolist(), "labels": row["labels"].tolist()} for row in data]
    names = {"entropy": "outputs.entropy", "counts": "outputs.label_mask"}
    trainer = PenalizedSFTTrainer(
        model,
        trl.SFTConfig(**shared(tmp_path, accumulation)),
        train_dataset=Dataset.from_list(columns),
        processing_class=tokenizer,
        pipeline=pn.Pipeline([DECAY, pn.Term(uncertainty, weight=0.3, inputs=names, scope="mean")]),
    )
    trainer.train()

    optimizer = torch.optim.SGD(expected.parameters(), lr=cases.LEARNING_RATE)
    losses = []
    for (mine,) in cases.windows(data, accumulation, 1):
        total = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in mine)
        loss = 0.01 * sum(p.square().sum() for p in expected.parameters())
        for batch in mine:
            logp, labels = logprobs_of(expected, batch["input_ids"]), batch["labels"][:, 1:]
            counts = labels != -100
            picked = logp.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
            entropy = -(logp.exp() * logp).sum(-1)
            loss = loss - (picked * counts).sum() / total + 0.3 * (entropy * counts).sum() / total
        losses.append(loss.item())
        stepped(expected, optimizer, loss)
    assert_equal(model, expected)
    assert [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("accumulation", [1, 4, 8])
def test_preferences_are_tuned_as_by_hand(accumulation: int, tmp_path: Path, tokenizer: Any):
    model, expected, initial = (cases.language_model() for _ in range(3))
    # Without the token that ends a text, which the trainer appends.
    data = [{"input_ids": row["input_ids"].clamp(min=2)} for row in cases.tokens(ROWS)]
    texts = [[WORDS[token] for token in row["input_ids"]] for row in data]
    columns = [
        {"prompt": " ".join(text[:2]), "chosen": f" {text[2]} {text[3]}", "rejected": f" {text[4]} {text[5]}"}
        for text in texts
    ]
    trainer = PenalizedDPOTrainer(
        model,
        ref_model=cases.language_model(),
        args=trl.DPOConfig(**shared(tmp_path, accumulation)),
        train_dataset=Dataset.from_list(columns),
        processing_class=tokenizer,
        pipeline=pn.Pipeline([DECAY, pn.Term(fluency, weight=0.1, inputs="outputs.log_probs", scope="mean")]),
    )
    trainer.train()

    optimizer = torch.optim.SGD(expected.parameters(), lr=cases.LEARNING_RATE)
    losses = []

    def chosen_and_rejected(one: nn.Module, ids: Tensor) -> Tensor:
        """Log-probabilities of both answers, and before each of them 0 for the prompt."""
        end = torch.ones_like(ids[:, :1])
        texts = torch.cat([torch.cat([ids[:, :2], answer, end], 1) for answer in (ids[:, 2:4], ids[:, 4:])])
        picked = logprobs_of(one, texts).gather(-1, texts[:, 1:, None])[..., 0]
        return torch.cat([torch.zeros_like(picked[:, :1]), picked[:, 1:]], 1)

    for (mine,) in cases.windows(data, accumulation, 1):
        loss = 0.01 * sum(p.square().sum() for p in expected.parameters())
        for batch in mine:
            policy = chosen_and_rejected(expected, batch["input_ids"])
            with torch.no_grad():
                before = chosen_and_rejected(initial, batch["input_ids"])
            chosen, rejected = (policy - before).sum(1).chunk(2)
            loss = loss - logsigmoid(0.1 * (chosen - rejected)).mean() / len(mine)
            loss = loss - 0.1 * policy.mean() / len(mine)
        losses.append(loss.item())
        stepped(expected, optimizer, loss)
    assert_equal(model, expected)
    assert [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] == pytest.approx(losses, rel=1e-5)


def test_a_window_in_which_no_token_counts_has_the_terms_of_the_parameters_alone(tmp_path: Path, tokenizer: Any):
    rows = [{"input_ids": row["input_ids"].tolist(), "labels": [-100] * cases.LENGTH} for row in cases.tokens(8)]
    trainer = PenalizedSFTTrainer(
        cases.language_model(),
        trl.SFTConfig(**shared(tmp_path, 4) | {"max_steps": 1}),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        pipeline=pn.Pipeline([DECAY, pn.Term(fluency, weight=0.1, inputs="outputs.log_probs", scope="mean")]),
    )
    trainer.train()
    decay = 0.01 * pn.l2(cases.language_model().parameters()).item()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(decay, rel=1e-5)
    assert trainer.state.log_history[0]["loss/fluency"] == 0.0


def test_logits_that_a_fused_head_does_not_build_raise(tmp_path: Path, tokenizer: Any):
    trainer = PenalizedSFTTrainer(
        cases.language_model(),
        trl.SFTConfig(**shared(tmp_path, 1)),
        train_dataset=Dataset.from_list([{"input_ids": [1, 2, 3]}] * 4),
        processing_class=tokenizer,
        pipeline=pn.Pipeline([pn.Term(pn.l2, inputs="logits")]),
    )
    with pytest.raises(pn.InputError, match='reads "logits", which the model did not return; it returned .*log_probs'):
        trainer.train()
