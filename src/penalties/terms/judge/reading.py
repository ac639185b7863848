"""What a judge reads, as batches of token ids."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...arrays import is_array
from ...errors import OptionError, ShapeError
from ...functional.options import is_whole
from ...pipeline.kinds import described, is_row
from .loading import OWNER

__all__ = ["Encoded", "batches", "encode", "lengths"]


class Encoded(NamedTuple):
    """Texts as token ids of the judge."""

    ids: list[list[int]]
    truncated: int
    """Texts that are longer than the judge reads."""


def encode(samples: Any, tokenizer: Any, longest: int | None) -> Encoded:
    """Texts, by the tokenizer, or token ids, as they are; both cut where the judge ends."""
    if is_array(samples):
        samples = samples.tolist()
    if not is_row(samples) or not samples:
        raise OptionError(
            OWNER, "samples", described(samples), "a list of texts, or of the token ids of each; at least one"
        )
    if all(isinstance(text, str) for text in samples):
        ids: list[list[int]] = [list(tokenizer(text, verbose=False)["input_ids"]) for text in samples]
    else:
        ids = [_token_ids(number, one) for number, one in enumerate(samples)]
    for number, one in enumerate(ids):
        if not one:
            raise OptionError(OWNER, f"samples[{number}]", samples[number], "a text that has tokens")
    if longest is None:
        return Encoded(ids, 0)
    if all(isinstance(text, str) for text in samples):
        cut = [
            list(tokenizer(text, truncation=True, max_length=longest)["input_ids"]) if len(one) > longest else one
            for text, one in zip(samples, ids, strict=True)
        ]
    else:
        cut = [one[:longest] for one in ids]
    return Encoded(cut, sum(len(one) > longest for one in ids))


def _token_ids(number: int, one: Any) -> list[int]:
    found = one.tolist() if is_array(one) else one
    if not is_row(found) or not all(is_whole(token) for token in found):
        raise OptionError(
            OWNER, f"samples[{number}]", described(one), "a text, or a list or array of token ids, like all"
        )
    return list(found)


def batches(sizes: Sequence[int], most: int, *, padding: bool) -> Iterator[list[int]]:
    """The indices of samples to read together: of similar length, or of the same where nothing may be padded."""
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) == most or (not padding and sizes[index] != sizes[batch[0]])):
            yield batch
            batch = []
        batch.append(index)
    yield batch


def lengths(mask: Any, shape: Sequence[int]) -> list[int]:
    """How many positions of each sample count; they must be the first."""
    if mask is None:
        return [shape[1]] * shape[0]
    if not is_array(mask) or tuple(mask.shape) != tuple(shape[:2]):
        there = tuple(mask.shape) if is_array(mask) else described(mask)
        raise ShapeError(f"{OWNER}: mask has shape {there}; expected {tuple(shape[:2])}, that of the samples")
    rows = [[bool(flag) for flag in row] for row in mask.tolist()]
    found = [sum(row) for row in rows]
    for number, (row, length) in enumerate(zip(rows, found, strict=True)):
        if not length or not all(row[:length]):
            raise OptionError(OWNER, f"mask[{number}]", row, "at least one position, and padding only at the end")
    return found
