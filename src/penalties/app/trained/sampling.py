"""Continuations of prompts: encoded as the data are, and decoded without the token that ends a text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..data import Bad, Prompt, learned_ends, prompt_tokens
from ..problems import shown
from ..runs.disk import RunError

if TYPE_CHECKING:
    from ..train.clients import Backend

__all__ = ["asked", "continued"]


def asked(prompt: str, *, chat: bool) -> Prompt:
    """A prompt of the user's; for a model that was trained on conversations it is a turn in one."""
    return ({"role": "user", "content": prompt},) if chat else prompt


def continued(
    backend: "Backend", prompts: Sequence[Prompt], count: int = 1, *, temperature: float = 0.0, **options: Any
) -> list[list[str]]:
    """So many continuations of each prompt, by the model as it is now.

    At temperature 0 every token is the likeliest one. A text ends with an end token of the model's generation config
    or of the data. The other options are those of `SamplingParams`. Training is not affected: nothing is drawn from
    the generator that checkpoints include.
    """
    tokenizer = backend.tokenizer
    encoded = [_encoded(backend, prompt) for prompt in prompts]
    ends = {*backend.ends, *learned_ends(tokenizer, chat=any(not isinstance(prompt, str) for prompt in prompts))}
    drawn = backend.sample(
        encoded, count, {"temperature": temperature, "seed": 0, "stop": sorted(ends) or None, **options}
    )
    return [[tokenizer.decode(tokens, skip_special_tokens=True) for tokens in some] for some in drawn]


def _encoded(backend: "Backend", prompt: Prompt) -> list[int]:
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    try:
        text.encode()
        tokens = prompt_tokens(backend.tokenizer, prompt)
    except UnicodeEncodeError as error:
        raise RunError(f"the prompt {shown(ascii(text))} is not UTF-8; expected text", 2) from error
    except Bad as error:
        raise RunError(f"the prompt {shown(text)} cannot be used: {error}", 2) from error
    if not tokens:
        raise RunError("the prompt is empty; expected some text for the model to continue", 2)
    if backend.limit is not None and len(tokens) > backend.limit:
        raise RunError(
            f"the prompt {shown(text)} has {len(tokens)} tokens, but the model reads at most {backend.limit}; "
            "shorten it",
            2,
        )
    return tokens
