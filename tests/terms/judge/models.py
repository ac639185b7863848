"""Judges made on the spot: a classifier with random weights, and one that counts a word."""

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

WORDS = ["<pad>", "?", "good", "bad", "cat", "dog", "sat", "ran"]


def tokenizer() -> Any:
    """A token for each word."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="?")


def classifier(kind: str = "bert", labels: int = 1, **options: Any) -> Any:
    """A small one, with random weights."""
    torch.manual_seed(0)
    about = {"num_labels": labels, "vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 16}
    about |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 12, "pad_token_id": 0}
    if kind == "llama":
        about |= {"num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None}
        config: Any = transformers.LlamaConfig(**{**about, **options})
    else:
        config = transformers.BertConfig(**{**about, **options})
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def saved(folder: Path, module: Any = None) -> Path:
    """A folder with a judge and its tokenizer."""
    (classifier() if module is None else module).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
