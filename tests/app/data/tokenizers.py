"""Tokenizers of transformers, made here: a token per byte, special tokens, and a chat template."""

from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace(
    "\n{{ message.content",
    "\n{% if message.role == 'assistant' and loop.last %}<think>\n</think>\n{% endif %}{{ message.content",
)
"""A template that writes the last turn of the assistant in another way than the others."""
INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
"""A template whose assistant has no heading."""
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}"
    "{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}"
)
STRICT = "{% if messages[0].role != 'user' %}{{ raise_exception('the user begins') }}{% endif %}" + CHATML
HIDING = "{% for message in messages %}{{ message.role }};{% endfor %}"
"""A template that leaves out what is said."""


def tokenizer(template: str | None = CHATML, eos: str = "<|im_end|>") -> Any:
    """A fast tokenizer with this chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made: Any = Tokenizer(models.BPE(letters, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=eos, bos_token="<s>")
    fast.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    fast.chat_template = template
    return fast


def model_folder(folder: Path, template: str | None = CHATML, eos: str = "<|im_end|>") -> Path:
    """A small random model with such a tokenizer, as `from_pretrained` reads it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    fast = tokenizer(template, eos)
    fast.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(fast), **sizes)).save_pretrained(folder)
    return folder
