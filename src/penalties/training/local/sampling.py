"""Tokens drawn from a model."""

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
    """What is to be drawn, checked."""

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
    """Texts that do."""


def checked_draw(model: LocalModel, prompt: Any, count: Any, params: Any) -> Draw:
    """What is to be drawn, of any client's `ModelInput` and `SamplingParams`."""
    if not hasattr(prompt, "to_ints"):
        raise InputError(f"sample: the prompt is a {type(prompt).__name__}; expected a ModelInput of tokens")
    tokens = np.asarray(prompt.to_ints(), np.int64)
    check_tokens(model, "sample", tokens)
    check_count("sample", "num_samples", count, 1)
    # The last token that is drawn is never read.
    room = model.context - len(tokens) + 1
    most = room if params.max_tokens is None else params.max_tokens
    if most == math.inf:
        raise OptionError("sample", "max_tokens", None, "a number, since the model has no longest context")
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
    """Tokens and texts that end a sequence: where nothing is said, the model's own."""
    if given is None:
        return model.ends, ()
    stops = [given] if isinstance(given, str) else list(cast("Sequence[Any]", given))
    wrong = [stop for stop in stops if not (is_whole(stop) or (isinstance(stop, str) and stop))]
    if wrong:
        raise OptionError("sample", "stop", wrong[0], "tokens, or texts that are not empty")
    return (
        frozenset(int(stop) for stop in stops if not isinstance(stop, str)),
        tuple(stop for stop in stops if isinstance(stop, str)),
    )


def draw(model: LocalModel, wanted: Draw, generator: "Generator") -> list[SampledSequence]:
    """Sequences of tokens, each with its log-probability under the model itself: as a forward gives it.

    Temperature, `top_k` and `top_p` change what is drawn, not the log-probabilities that are told.
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
                # The prompt is read once for all.
                cache.batch_repeat_interleave(wanted.count)
            # On the CPU, where the generator is: the same draws on every device.
            logits = output.logits[:, -1].float().cpu().expand(wanted.count, -1)
            chosen = _choose(logits, wanted, generator)
            logprobs = logits.log_softmax(-1).gather(-1, chosen)
            for place, sequence in list(going.items()):
                sequence.tokens.append(int(chosen[place]))
                sequence.logprobs.append(float(logprobs[place]))
                if _stopped(model, wanted, sequence.tokens):
                    sequences[place] = replace(sequence, stop_reason="stop")
                    del going[place]
            if not going:
                break
            given = chosen.to(model.device)
    return sequences


def _choose(logits: Any, wanted: Draw, generator: "Generator") -> "Tensor":
    """One token of each line, (B, 1)."""
    import torch

    if wanted.temperature == 0.0:
        return logits.argmax(-1, keepdim=True)
    ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
    # The largest is 0 first: divided by next to nothing, another would be infinite.
    ordered = (ordered - ordered[:, :1]) / wanted.temperature
    if wanted.top_k != -1:
        ordered[:, wanted.top_k :] = -math.inf
    probabilities = ordered.softmax(-1)
    # A token is left out where those before it have enough already; the first never is.
    probabilities[probabilities.cumsum(-1) - probabilities >= wanted.top_p] = 0.0
    return tokens.gather(-1, torch.multinomial(probabilities, 1, generator=generator))


def _stopped(model: LocalModel, wanted: Draw, tokens: Sequence[int]) -> bool:
    if tokens[-1] in wanted.tokens:
        return True
    if not wanted.texts:
        return False
    text = model.tokenizer.decode(tokens)
    return any(stop in text for stop in wanted.texts)
