"""The built-in model: small and random, with a byte tokenizer; nothing is downloaded."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...errors import InputError
from ..libraries import library

__all__ = ["CONTEXT", "ByteTokenizer", "tiny_model"]

CONTEXT: Final = 2048
"""The longest sequence of tokens."""
_END: Final = 256
_UNSEEN: Final = (32, 160, 173)
"""Printable bytes of Latin-1 that leave no ink, or may not."""
_TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""What `apply_chat_template` does, as transformers writes it."""


class ByteTokenizer:
    """One token per UTF-8 byte, and one that ends a text; with the usual methods of a tokenizer.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("né")
    [110, 195, 169]
    >>> tokenizer.decode([110, 195, 169, 256])
    'né<end>'
    """

    vocab_size: Final = _END + 1
    eos_token: Final = "<end>"
    eos_token_id: Final = _END
    pad_token: Final = eos_token
    pad_token_id: Final = _END
    bos_token: Final = None
    bos_token_id: Final = None

    chat_template: Final = "{role}: {content}\n"
    """A message of a conversation."""

    def __len__(self) -> int:
        """The size of the vocabulary."""
        return self.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """The tokens by their text, as byte-level tokenizers write it: a printable byte as itself."""
        others = itertools.count(_END)
        letters = [
            chr(byte if chr(byte).isprintable() and byte not in _UNSEEN else next(others)) for byte in range(_END)
        ]
        return {letter: token for token, letter in enumerate([*letters, self.eos_token])}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The bytes of a text; nothing is added before or after, whatever `add_special_tokens` says."""
        return list(text.encode())

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """The tokens as `input_ids`, and a mask of ones."""
        tokens = self.encode(text, add_special_tokens)
        return {"input_ids": tokens, "attention_mask": [1] * len(tokens)}

    def apply_chat_template(
        self, messages: Iterable[Mapping[str, Any]], tokenize: bool = True, add_generation_prompt: bool = False
    ) -> str | list[int]:
        r"""A conversation, or its tokens; `add_generation_prompt` adds the beginning of the assistant's turn.

        >>> messages = [{"role": "user", "content": "hi"}]
        >>> ByteTokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        'user: hi\nassistant: '
        """
        text = "".join(self.chat_template.format(**message) for message in messages)
        text += "assistant: " if add_generation_prompt else ""
        return self.encode(text) if tokenize else text

    def decode(self, tokens: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text; bytes that are not UTF-8 become "�"."""
        pieces: list[bytes] = []
        for token in (int(token) for token in tokens):
            if not 0 <= token < self.vocab_size:
                raise InputError(f"ByteTokenizer.decode: got token {token}; expected 0 to {_END}")
            if token < _END:
                pieces.append(bytes([token]))
            elif not skip_special_tokens:
                pieces.append(self.eos_token.encode())
        return b"".join(pieces).decode(errors="replace")

    def batch_decode(self, sequences: Iterable[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        """The text of each sequence."""
        return [self.decode(tokens, skip_special_tokens) for tokens in sequences]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write it to a folder from which transformers loads a tokenizer that reads and writes the same tokens."""
        tokenizers, transformers = (library("ByteTokenizer", name, "train") for name in ("tokenizers", "transformers"))
        letters = {letter: token for letter, token in self.get_vocab().items() if token < _END}
        made = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = tokenizers.decoders.ByteLevel()
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=made,
            eos_token=self.eos_token,
            pad_token=self.pad_token,
            model_max_length=CONTEXT,
            clean_up_tokenization_spaces=False,
            chat_template=_TEMPLATE,
        ).save_pretrained(str(folder))


def tiny_model(dtype: Any = None) -> Any:
    """Qwen 3 with two layers and hidden size 64, initialised from torch's global generator."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    config: Any = Qwen3Config(
        vocab_size=ByteTokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        # Wider than the usual 0.02: the output layer is frozen, and at that scale no hidden state of this size could
        # tell its tokens apart. Measured over 30 steps: the loss falls from 5.6 to 4.5 at 0.02, and to 0.7 at 0.1.
        initializer_range=0.1,
        eos_token_id=ByteTokenizer.eos_token_id,
        pad_token_id=ByteTokenizer.pad_token_id,
    )
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(config)
    for one in model.parameters():
        # Parameters only: the rotary frequencies are buffers, and keep their precision.
        one.data = one.data.to(dtype or one.dtype)
    return model
