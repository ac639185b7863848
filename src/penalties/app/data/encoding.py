"""Examples as data for a client: their tokens, and the weight of each target."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...training.types import Datum, ModelInput
from .chat import Part, parts_of, rendered, special_tokens
from .examples import Bad, Chat, Example, Prompt, Text
from .token_arrays import TokenArrays

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["Encoder", "prompt_tokens"]

_MEANS: Final = ("cross_entropy", "importance_sampling")
"""The losses that are sums over targets, and may be means."""


def prompt_tokens(tokenizer: Any, prompt: Prompt) -> list[int]:
    """The tokens of a prompt, as the data have them before what is learned.

    A text begins as the tokenizer itself begins one; messages end where the assistant's turn begins. `Bad` is raised
    for messages that do not fit the chat template.
    """
    if not isinstance(prompt, str):
        return list(tokenizer.encode(rendered(tokenizer, prompt, add_generation_prompt=True), add_special_tokens=False))
    begin = getattr(tokenizer, "bos_token_id", None)
    first: list[int] = list(tokenizer.encode("", add_special_tokens=True))[:1]
    return [*(first if first == [begin] else []), *tokenizer.encode(prompt, add_special_tokens=False)]


class Encoder:
    """Encodes examples as data."""

    def __init__(self, config: "Config", tokenizer: Any, limit: int | None) -> None:
        """For a model that reads at most `limit` tokens, if that is known."""
        self.loss: str = config.train.loss
        self._data = config.data
        self._mean = self.loss in _MEANS and config.train.reduction == "mean"
        self._tokenizer = tokenizer
        self._stands_in: bool = getattr(tokenizer, "stands_in", False)
        """Whether its tokens are not to be counted."""
        self._limit = limit
        self._width: int | None = None
        """The number of candidates of a token, in the examples so far."""
        end = getattr(tokenizer, "eos_token_id", None)
        self._begin: list[int] = prompt_tokens(tokenizer, "")
        self._end: list[int] = [end] if end is not None and self._data.end_token else []

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def check(self, example: Example) -> None:
        """Raise for an example from which nothing could be learned, or that is too long for the model."""
        widths = {row.arrays.width for row in example if isinstance(row, Text)} - {None}
        width = widths.pop() if widths else None
        if width != (self._width or width):
            raise Bad(f"candidates has {width} tokens for each token; expected {self._width}, as in the lines before")
        self._check_length(example)
        self._width = width

    def _check_length(self, example: Example) -> None:
        room, limit = self._data.max_length, self._limit
        longest = 0
        for row in example:
            parts = self._parts(row)
            # A token is at least a byte: the tokenizer is needed only for what may be too long or too short.
            sizes = [(len(one.encode() if isinstance(one, str) else one), learned) for one, learned in parts]
            before = next((index for index, (_, learned) in enumerate(sizes) if learned), len(sizes))
            if before == len(sizes) and self._data.mask_prompt:
                raise Bad("has nothing to learn: the chat template writes no text for the assistant's turns")
            begins = sum(size for size, _ in sizes[:before])
            tight = room is not None and begins >= room
            long = limit is not None and sum(size for size, _ in sizes) > limit
            if begins and not tight and not long:
                continue
            tokens, learned = self._tokens(parts)
            prompt = learned.index(True) if True in learned else len(learned)
            if room is not None and prompt >= room:
                raise Bad(f"its prompt has {prompt} tokens, but data.max_length is {room}; nothing would be left")
            if len(tokens) < 2:
                raise Bad("has no prompt and a completion of one token, from which nothing can be learned")
            longest = max(longest, len(tokens))
        # The last token is only a target; the model does not read it.
        if limit is not None and min(longest, room or longest) - 1 > limit:
            cut = f"set data.max_length = {limit + 1} to cut it"
            raise Bad(f"has {longest} tokens, but the model reads at most {limit}; {cut}")

    def _parts(self, row: Text | Chat) -> list[Part]:
        if isinstance(row, Text):
            # Whatever is empty has no tokens, also where a tokenizer begins every text with one.
            parts: list[Part] = [(self._begin, False), (row.prompt, False)]
            if row.arrays.columns and not self._stands_in:
                parts.append((self._completed(row), True))
            else:
                parts += [(row.text, True), (self._end, True)]
            return [part for part in parts if part[0]]
        parts = parts_of(self._tokenizer, row)
        text, learned = parts[-1]
        # A template that ends a conversation has a token for it.
        ended = not isinstance(text, str) or text.rstrip().endswith(tuple(special_tokens(self._tokenizer)))
        return [*parts, (self._end, True)] if learned and not ended and self._end else parts

    def _completed(self, row: Text) -> list[int]:
        """The tokens of a text, with the one that ends it if the numbers beside it say so."""
        try:
            return row.arrays.completed(self._encode(row.text), self._end)
        except ValueError as error:
            raise Bad(str(error)) from error

    def _tokens(self, parts: Sequence[Part]) -> tuple[list[int], list[bool]]:
        """The tokens of an example, and which of them are learned."""
        tokens: list[int] = []
        learned: list[bool] = []
        for part, counts in parts:
            found = self._encode(part) if isinstance(part, str) else part
            tokens += found
            learned += [counts] * len(found)
        return tokens, learned

    def lengths(self, example: Example) -> list[int]:
        """How many tokens each text of an example has before it is cut."""
        return [len(self._tokens(self._parts(row))[0]) for row in example]

    def batch(self, examples: Sequence[Example]) -> list[Datum]:
        """The data of a step; if the loss is a mean, the factors of its targets are divided by their number."""
        made = [row for example in examples for row in self._rows(example)]
        total = sum(float(inputs["weights"].sum()) for _, inputs in made) if self._mean else 1.0
        factor = "advantages" if self.loss == "importance_sampling" else "weights"
        for _, inputs in made:
            inputs[factor] = inputs[factor] / total
        return [Datum(ModelInput.from_ints(tokens[:-1]), inputs) for tokens, inputs in made]

    def _rows(self, example: Example) -> Iterator[tuple[list[int], dict[str, np.ndarray[Any, Any]]]]:
        """The tokens of each text of an example, and the inputs of the loss."""
        for row in example:
            tokens, learned = self._tokens(self._parts(row))
            weights = np.array(learned if self._data.mask_prompt else [True] * len(tokens), float)
            room = self._data.max_length
            arrays = row.arrays if isinstance(row, Text) else TokenArrays({})
            start = learned.index(True) - 1 if True in learned else len(learned)
            yield tokens[:room], arrays.inputs(np.asarray(tokens[1:room]), weights[1:room], start)
