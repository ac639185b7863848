"""Tokenizers of transformers, made here: a token per byte, special tokens, and a chat template."""

import json
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


def folder_with_code(folder: Path, *parts: str) -> Path:
    """A model with a config, a tokenizer, or both, whose class is in the folder; importing that touches `ran`."""
    model_folder(folder)
    classes = {"config": {"AutoConfig": "own.Config"}, "tokenizer": {"AutoTokenizer": ["own.Tokenizer", None]}}
    for part in parts:
        path = folder / ("config.json" if part == "config" else "tokenizer_config.json")
        # Of a kind that transformers does not know, so that it needs the code.
        other = {"model_type": "own"} if part == "config" else {"tokenizer_class": "Tokenizer"}
        path.write_text(json.dumps({**json.loads(path.read_text()), **other, "auto_map": classes[part]}))
    (folder / "own.py").write_text(f"from pathlib import Path\n\nPath({str(folder / 'ran')!r}).touch()\n")
    return folder
