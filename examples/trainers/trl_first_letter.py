"""Teach a small language model a rule with TRL's SFTTrainer and two penalties, from answers that are partly wrong.

A prompt is five letters, and the answer is the first of them; a quarter of the answers are any letter.
The trainer alone learns those by heart. Run it with `python examples/trainers/trl_first_letter.py`; it needs
`pip install "penalties[huggingface]" trl` and nothing from the network.
"""

import random
import tempfile
from typing import Any

import torch
import trl
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen3Config, Qwen3ForCausalLM

import penalties as pn
from penalties.integrations.huggingface import PenaltiesMixin

LETTERS = "abcdefghij"
WORDS = ["<pad>", "<end>", "=", *LETTERS]
LENGTH = 5
WRONG = 0.25
STEPS = 150
ACCUMULATION = 2


class PenalizedSFTTrainer(PenaltiesMixin, trl.SFTTrainer):
    """TRL's trainer, with terms in its loss, its logs and its checkpoints."""


def certainty(entropy: Tensor, counts: Tensor) -> Tensor:
    """Minus the mean entropy of the tokens that count; it is 0 at the others."""
    return -entropy.sum() / counts.sum()


PIPELINE = pn.Pipeline(
    [
        # Small weights. It reads parameters only, so it counts once in each optimizer step.
        pn.Term(pn.l2, name="decay", weight=5e-3, inputs="params"),
        # Less certainty than the answers suggest, because some of them are wrong.
        pn.Term(
            certainty,
            weight=0.2,
            inputs={"entropy": "outputs.entropy", "counts": "outputs.label_mask"},
            scope="mean",
        ),
    ]
)


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<pad>")


def language_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        bos_token_id=None,
        eos_token_id=WORDS.index("<end>"),
        pad_token_id=WORDS.index("<pad>"),
    )
    return Qwen3ForCausalLM(config)


def texts(count: int, wrong: float, chance: random.Random) -> list[dict[str, str]]:
    """Prompts and answers, some of which are any letter; only the answers are learned from."""
    rows: list[dict[str, str]] = []
    for _ in range(count):
        letters = chance.choices(LETTERS, k=LENGTH)
        answer = chance.choice(LETTERS) if chance.random() < wrong else letters[0]
        rows.append({"prompt": f"{' '.join(letters)} =", "completion": f" {answer}"})
    return rows


def train(pipeline: pn.Pipeline, data: list[dict[str, str]]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        arguments = trl.SFTConfig(
            folder,
            per_device_train_batch_size=80,
            gradient_accumulation_steps=ACCUMULATION,
            max_steps=STEPS,
            learning_rate=0.01,
            lr_scheduler_type="constant",
            logging_steps=30,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = PenalizedSFTTrainer(
            language_model(),
            arguments,
            train_dataset=Dataset.from_list(data),
            processing_class=tokenizer(),
            pipeline=pipeline,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer


@torch.no_grad()
def summary(model: Any, data: list[dict[str, str]]) -> str:
    """The result, on unseen prompts with correct answers."""
    words = tokenizer()
    ids = torch.tensor([words(row["prompt"])["input_ids"] for row in data])
    right = torch.tensor([WORDS.index(row["completion"].strip()) for row in data])
    probabilities = model(ids).logits[:, -1].softmax(-1)
    accuracy = (probabilities.argmax(-1) == right).double().mean().item()
    return f"test accuracy {accuracy:6.1%}, mean confidence {probabilities.amax(-1).mean().item():6.1%}"


def main() -> None:
    disable_progress_bar()
    chance = random.Random(0)
    data, test = texts(320, WRONG, chance), texts(1000, 0.0, chance)
    penalised = train(PIPELINE, data)
    keys = ("loss", "loss/base_loss", "loss/decay/weighted", "loss/certainty/weighted")
    print("step  " + " ".join(f"{key:>24}" for key in keys))
    for entry in penalised.state.log_history:
        if "loss" in entry:
            print(f"{entry['step']:4d}  " + " ".join(f"{entry[key]:24.4f}" for key in keys))
    plain = train(PIPELINE.disable(*PIPELINE.names), data)
    print(f"\nwithout penalties: {summary(plain.model, test)}")
    print(f"with penalties:    {summary(penalised.model, test)}")


if __name__ == "__main__":
    main()
