"""The K likeliest tokens of a model at each position, with their log-probabilities."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from ...arrays import Logits
from ...errors import InputError, said
from ..futures import result_of
from ..reading import targets_of, tokens_of
from ..sdk import prompt_for
from .asking import Arrays
from .logits import logits_of

__all__ = ["Likeliest", "checked_likeliest", "joined", "requested_likeliest", "sampler_of", "split"]

_ELEMENTS: Final = 2**24
"""Logits that exist at a time."""

Likeliest: TypeAlias = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Of a datum: tokens and their log-probabilities, both (N, K), the likeliest first."""


def joined(one: Likeliest) -> np.ndarray[Any, Any]:
    """Both arrays as one, (N, 2·K), for a cache; float32 has every token below 2²⁴."""
    return np.concatenate([part.astype(np.float32) for part in one], axis=1)


def split(array: np.ndarray[Any, Any]) -> Likeliest:
    """What `joined` returned, as tokens and log-probabilities.

    >>> split(joined((np.array([[7, 2]]), np.array([[-0.5, -1.0]]))))
    (array([[7, 2]]), array([[-0.5, -1. ]], dtype=float32))
    """
    tokens, logprobs = np.split(array, 2, axis=1)
    return tokens.astype(np.int64), logprobs


def requested_likeliest(
    provider: str, source: Any, data: Sequence[Any], indices: Sequence[int], count: int, *, first: bool = False
) -> Callable[[], Arrays]:
    """Request the likeliest tokens of the data at these indices; returns a function that waits for them, `joined`.

    `source` is a model in this process, `first` for that before training, or what `sampler_of` returned.
    """
    some = [data[index] for index in indices]
    if hasattr(source, "forward_with_graph"):
        logits = logits_of(provider, source, some, lazy=True, **({"initial": True} if first else {}))
        lengths = [len(targets_of(index, data[index])) for index in indices]
        return lambda: _of_logits(provider, logits.result(), lengths, count)
    asked = {index: _asked(provider, source, index, data[index], count) for index in indices}
    return lambda: [_of_answer(provider, index, sent, data[index], count) for index, sent in asked.items()]


def sampler_of(provider: str, client: Any) -> Any:
    """What tells the likeliest tokens of a client's model as it is now: the client itself, or a sampler that it makes.

    A sampler keeps the weights that it was made with.
    """
    if hasattr(client, "forward_with_graph") or _tells(client):
        return client
    make = getattr(client, "save_weights_and_get_sampling_client", None)
    if not callable(make):
        raise InputError(
            f"{provider}: {type(client).__name__} returns only log-probabilities of given tokens; top_k needs a "
            "LocalTrainingClient, or a client whose samplers take topk_prompt_logprobs"
        )
    try:
        sampler = result_of(make())
    except Exception as error:
        raise InputError(f"{provider}: its save_weights_and_get_sampling_client raised {said(error)}") from error
    if not _tells(sampler):
        raise InputError(
            f"{provider}: the sample of {type(sampler).__name__} does not take topk_prompt_logprobs, which top_k needs"
        )
    return sampler


def _tells(client: Any) -> bool:
    """Whether the `sample` of a client returns the likeliest tokens at each position of a prompt."""
    sample = getattr(client, "sample", None)
    return callable(sample) and "topk_prompt_logprobs" in inspect.signature(sample).parameters


def _of_logits(provider: str, logits: Any, lengths: Sequence[int], count: int) -> Arrays:
    """A block of rows at a time: all of them would be as large as the vocabulary is wide."""
    import torch

    rows, classes = logits.shape
    if count > classes:
        raise InputError(f"{provider}: top_k={count}, but the model has {classes} tokens; expected at most as many")
    tokens, logprobs = list[Any](), list[Any]()
    hidden = logits.hidden if isinstance(logits, Logits) else logits
    for block in hidden.split(max(1, _ELEMENTS // classes)):
        with torch.no_grad():
            scores = logits.with_hidden(block).materialize() if isinstance(logits, Logits) else block
            best = scores.float().log_softmax(-1).topk(count, dim=-1)
        tokens.append(best.indices.cpu().numpy())
        logprobs.append(best.values.cpu().numpy())
    whole = joined((np.concatenate(tokens), np.concatenate(logprobs)))
    return np.split(whole, np.cumsum(lengths)[:-1]) if rows else []


def _asked(provider: str, sampler: Any, index: int, datum: Any, count: int) -> Any:
    """Send a text to a sampler. It answers about each token given those before it, so that the last target ends it."""
    tokens = [*tokens_of(index, datum).tolist(), int(targets_of(index, datum)[-1])]
    prompt, options = prompt_for(sampler, tokens, max_tokens=1)
    try:
        return sampler.sample(prompt, 1, options, include_prompt_logprobs=True, topk_prompt_logprobs=count)
    except Exception as error:
        raise InputError(f"{provider}: datum {index}: its sample raised {said(error)}") from error


def _of_answer(provider: str, index: int, sent: Any, datum: Any, count: int) -> np.ndarray[Any, Any]:
    where = f"{provider}: datum {index}: its sample"
    try:
        found = result_of(sent).topk_prompt_logprobs
    except Exception as error:
        raise InputError(f"{where} raised {said(error)}") from error
    length = len(targets_of(index, datum))
    if found is None or len(found) != length + 1:
        given = "no topk_prompt_logprobs" if found is None else f"topk_prompt_logprobs of {len(found)} tokens"
        raise InputError(f"{where} returned {given}; expected those of {length + 1}")
    rows = [sorted(row or (), key=lambda pair: -pair[1])[:count] for row in found[1:]]
    for position, row in enumerate(rows):
        if len(row) < count:
            raise InputError(f"{where} returned {len(row)} tokens at position {position}; expected top_k={count}")
    pairs = np.asarray(rows, np.float64)
    return joined((pairs[..., 0], pairs[..., 1]))


def checked_likeliest(name: str, given: Any, data: Sequence[Any], count: int) -> list[Likeliest]:
    """The tokens and log-probabilities that a provider returned, checked: (N, K) each for a datum of N targets."""
    pairs: list[Any] = list(given)
    if len(pairs) != len(data):
        raise InputError(f'reference "{name}": its provider returned {len(pairs)} pairs for {len(data)} data')
    made: list[Likeliest] = []
    for index, (pair, datum) in enumerate(zip(pairs, data, strict=True)):
        shape = (len(targets_of(index, datum)), count)
        tokens, logprobs = (np.asarray(part) for part in pair)
        if tokens.shape != shape or logprobs.shape != shape:
            raise InputError(
                f'reference "{name}": datum {index}: has tokens of shape {tokens.shape} and log-probabilities of shape '
                f"{logprobs.shape}; expected {shape}: its positions, and top_k={count}"
            )
        if np.isnan(logprobs).any():
            raise InputError(f'reference "{name}": datum {index}: contains nan; expected log-probabilities')
        made.append((tokens.astype(np.int64), logprobs.astype(np.float32)))
    return made
