"""A model small enough to train on one core: two layers of Qwen3 with random weights, and a tokenizer of bytes."""

from pathlib import Path

VOCABULARY = 257  # the bytes, and the end of a text


def save_model(folder: Path) -> None:
    """Write the model and its tokenizer as any model on a hub is laid out."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    # The alphabet comes in no order of its own.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: token for token, text in enumerate([*alphabet, "<|endoftext|>"])}
    assert len(vocabulary) == VOCABULARY
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    ).save_pretrained(folder)

    torch.manual_seed(0)
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            eos_token_id=VOCABULARY - 1,
            pad_token_id=VOCABULARY - 1,
            dtype="float32",
        )
    ).save_pretrained(folder)
