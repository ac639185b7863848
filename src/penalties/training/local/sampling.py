"""Sampling tokens from a model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...errors import InputError, OptionError
from ...functional.options import check_count, check_number, is_whole
from ..types import SampledSequence
from .batch import check_tokens
from .forward import head_reads, on_device
from .model import LocalModel

if TYPE_CHECKING:
    from torch import Generator, Tensor

__all__ = ["Draw", "checked_draw", "draw"]


@dataclass(frozen=True)
class Draw:
    """A sampling request, checked."""

    prompt: np.ndarray[Any, Any]
    count: int
    most: int
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    tokens: frozenset[int]
    """Tokens that end a sequence."""
    texts: tuple[str, ...]
    """Strings that end a sequence."""


def checked_draw(model: LocalModel, prompt: Any, count: Any, params: Any) -> Draw:
    """The request, from any client's `ModelInput` and `SamplingParams`."""
    if not hasattr(prompt, "to_ints"):
        raise InputError(f"sample: the prompt is a {type(prompt).__name__}; expected a ModelInput of tokens")
    tokens = np.asarray(prompt.to_ints(), np.int64)
    check_tokens(model, "sample", tokens)
    check_count("sample", "num_samples", count, 1)
    # The last sampled token is never read.
    room = model.context - len(tokens) + 1
    most = room if params.max_tokens is None else params.max_tokens
    if most == math.inf:
        raise OptionError("sample", "max_tokens", None, "a number, because the model has no maximum context")
    check_count("sample", "max_tokens", most, 1)
    if params.top_k != -1:
        check_count("sample", "top_k", params.top_k, 1)
    if params.seed is not None and not is_whole(params.seed):
        raise OptionError("sample", "seed", params.seed, "a whole number or None")
    stops, texts = _stops(model, params.stop)
    return Draw(
        prompt=tokens,
        count=int(count),
        most=int(min(most, room)),
        temperature=check_number("sample", "temperature", params.temperature, "a finite number of at least 0", 0.0),
        top_k=int(params.top_k),
        top_p=check_number("sample", "top_p", params.top_p, "a number above 0 and up to 1", math.ulp(0.0), 1.0),
        seed=None if params.seed is None else int(params.seed),
        tokens=stops,
        texts=texts,
    )


def _stops(model: LocalModel, given: Any) -> tuple[frozenset[int], tuple[str, ...]]:
    """Tokens and strings that end a sequence: by default the model's own end tokens."""
    if given is None:
        return model.ends, ()
    stops = [given] if isinstance(given, str) else list(cast("Sequence[Any]", given))
    wrong = [stop for stop in stops if not (is_whole(stop) or (isinstance(stop, str) and stop))]
    if wrong:
        raise OptionError("sample", "stop", wrong[0], "tokens, or non-empty strings")
    return (
        frozenset(int(stop) for stop in stops if not isinstance(stop, str)),
        tuple(stop for stop in stops if isinstance(stop, str)),
    )


def draw(model: LocalModel, wanted: Draw, generator: "Generator") -> list[SampledSequence]:
    """Sequences of tokens, each token with its log-probability under the model itself, as a forward returns it.

    Temperature, `top_k` and `top_p` change what is sampled, not the reported log-probabilities.
    """
    import torch

    if wanted.seed is not None:
        generator = torch.Generator().manual_seed(wanted.seed)
    sequences = [SampledSequence([], []) for _ in range(wanted.count)]
    going = dict(enumerate(sequences))
    given, cache = on_device(model, wanted.prompt[None]), None
    with torch.no_grad(), head_reads(model, lambda states: states[:, -1:]):
        for length in range(wanted.most):
            output = model.base(input_ids=given, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            if not length:
                # The prompt is read once for all samples.
                cache.batch_repeat_interleave(wanted.count)
            # On the CPU, where the generator is, so that every device draws the same.
            logits = output.logits[:, -1].float().cpu().expand(wanted.count, -1)
            chosen = _choose(logits, wanted, generator)
            logprobs = logits.log_softmax(-1).gather(-1, chosen)
            for index, sequence in list(going.items()):
                sequence.tokens.append(int(chosen[index]))
                sequence.logprobs.append(float(logprobs[index]))
                if _stopped(model, wanted, sequence.tokens):
                    sequences[index] = replace(sequence, stop_reason="stop")
                    del going[index]
            if not going:
                break
            given = chosen.to(model.device)
    return sequences


def _choose(logits: Any, wanted: Draw, generator: "Generator") -> "Tensor":
    """One token per row, (B, 1)."""
    import torch

    if wanted.temperature == 0.0:
        return logits.argmax(-1, keepdim=True)
    ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
    # Shifted so that the largest is 0: others would overflow when divided by a tiny temperature.
    ordered = (ordered - ordered[:, :1]) / wanted.temperature
    if wanted.top_k != -1:
        ordered[:, wanted.top_k :] = -math.inf
    probabilities = ordered.softmax(-1)
    # A token is dropped if those before it already reach top_p; the first never is.
    probabilities[probabilities.cumsum(-1) - probabilities >= wanted.top_p] = 0.0
    return tokens.gather(-1, torch.multinomial(probabilities, 1, generator=generator))


def _stopped(model: LocalModel, wanted: Draw, tokens: Sequence[int]) -> bool:
    if tokens[-1] in wanted.tokens:
        return True
    if not wanted.texts:
        return False
    text = model.tokenizer.decode(tokens)
    return any(stop in text for stop in wanted.texts)
