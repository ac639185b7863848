"""Data of a run: JSON lines, read as they are needed, in an order that depends on the seed and the step alone."""

import array
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np

from ..training.types import Datum, ModelInput, TensorData
from .config_problems import DataError, Problem, joined, nearest

if TYPE_CHECKING:
    from .config import Config

__all__ = ["Stream"]

_FIELDS: Final = {False: ("prompt", "completion"), True: ("chosen", "rejected")}
"""What a line must have, by whether it is a pair."""


class Stream:
    """The examples of a config's files, as data for a client.

    The file is read once from end to end when it is opened: every line is checked, and where each begins is all that
    is kept. `batch(step)` is the same whenever it is asked for, so that a run can go on anywhere.

    A `prompt` and its `completion` follow each other as they are; the prompt counts 0, unless `mask_prompt` is off. Of
    a pair, `chosen` and `rejected`, both are data, the chosen one first. Bad lines are `problems`, and are left out, or
    raise `DataError` with all of them.
    """

    def __init__(self, config: "Config", tokenizer: Any) -> None:
        """Look through the files, and check every line."""
        self._config = config
        self._encoder = _Encoder(config, tokenizer)
        self._lines = _Lines(config.data.path, self._encoder, config.data.on_bad_line)
        eval_path = config.data.eval_path
        self._held_out = None if eval_path is None else _Lines(eval_path, self._encoder, config.data.on_bad_line)
        self._order: tuple[int, np.ndarray[Any, Any]] | None = None

    def __len__(self) -> int:
        """How many lines there are to train on."""
        return len(self._lines)

    @property
    def problems(self) -> list[Problem]:
        """The lines that were left out, and why."""
        return [*self._lines.problems, *(self._held_out.problems if self._held_out is not None else ())]

    @property
    def fingerprint(self) -> str:
        """Of what is in the files: a run that goes on with others is another run."""
        held_out = "" if self._held_out is None else f"-{self._held_out.fingerprint}"
        return f"{self._lines.fingerprint}{held_out}"

    def batch(self, step: int) -> list[Datum]:
        """The data of a step, counted from 0: `batch_size` lines, in the order of their pass through the file."""
        size = self._config.train.batch_size
        places = [self._place(number) for number in range(step * size, (step + 1) * size)]
        return self._encoder.batch(self._lines.read(places))

    def eval_batches(self) -> Iterator[list[Datum]]:
        """The held-out data, in the order of their file; the last batch may be smaller."""
        lines, size = self._held_out, self._config.train.batch_size
        for start in range(0, 0 if lines is None else len(lines), size):
            assert lines is not None, "there are some"
            yield self._encoder.batch(lines.read(range(start, min(start + size, len(lines)))))

    def _place(self, number: int) -> int:
        """The line that is the n-th to be trained on."""
        turn, place = divmod(number, len(self._lines))
        if not self._config.data.shuffle:
            return place
        if self._order is None or self._order[0] != turn:
            random = np.random.default_rng([self._config.train.seed, turn])
            self._order = turn, random.permutation(len(self._lines))
        return int(self._order[1][place])


class _Example(NamedTuple):
    """What a line says."""

    prompt: str
    texts: tuple[str, ...]
    """The completion; or the chosen one and the rejected one."""


class _Bad(Exception):
    """A line that cannot be used."""


class _Lines:
    """A file of JSON lines, of which only the beginnings of the good ones are kept."""

    def __init__(self, path: str, encoder: "_Encoder", on_bad_line: str) -> None:
        self.path = Path(path)
        self.problems: list[Problem] = []
        self._encoder = encoder
        self._starts = array.array("q")
        self._numbers = array.array("q")
        digest = hashlib.blake2b(digest_size=16)
        start = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                digest.update(line)
                self._look_at(number, start, line)
                start += len(line)
        self.fingerprint = digest.hexdigest()
        if self.problems and on_bad_line == "error":
            raise DataError(self.path.name, self.problems)
        if not self._starts:
            there = (
                f"all {len(self.problems)} are bad, the first: {self.problems[0]}" if self.problems else "there is none"
            )
            raise DataError(self.path.name, [Problem("file", f"no line can be used: {there}")])

    def _look_at(self, number: int, start: int, line: bytes) -> None:
        try:
            if not line.strip():
                return
            self._encoder.check(_parsed(line, self._encoder.pairs))
        except _Bad as bad:
            self.problems.append(Problem(f"line {number}", str(bad)))
        else:
            self._starts.append(start)
            self._numbers.append(number)

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, places: Sequence[int]) -> list[_Example]:
        """What the lines at these places say."""
        examples: list[_Example] = []
        with self.path.open("rb") as file:
            for place in places:
                file.seek(self._starts[place])
                try:
                    examples.append(_parsed(file.readline(), self._encoder.pairs))
                except _Bad as bad:
                    problem = Problem(f"line {self._numbers[place]}", f"was changed during the run: {bad}")
                    raise DataError(self.path.name, [problem]) from bad
        return examples


def _parsed(line: bytes, pairs: bool) -> _Example:
    """The example of a line."""
    try:
        found: Any = json.loads(line.decode("utf-8-sig").rstrip())
    except json.JSONDecodeError as error:
        raise _Bad(f"is no JSON: {error.msg.lower()}, at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise _Bad(f"is no UTF-8: {error.reason}, at byte {error.start + 1}") from error
    except RecursionError as error:
        raise _Bad("is nested too deeply") from error
    wanted = _FIELDS[pairs]
    if not isinstance(found, dict):
        raise _Bad(f"is {_kind(found)}; expected an object with {joined(wanted, 'and')}")
    given = cast("dict[str, Any]", found)
    for field in wanted:
        if field not in given:
            other = [one for one in _FIELDS[not pairs] if one != "prompt" and one in given]
            if other and not pairs:
                hint = ' (a pair is for train.loss = "dpo")'
            elif other:
                hint = ' (train.loss = "dpo" is for pairs)'
            else:
                hint = nearest(field, given)
            raise _Bad(f'has no "{field}"; there is {joined(given or ["nothing"], "and")}{hint}')
    texts = {field: given[field] for field in ("prompt", *wanted) if field in given}
    for field, text in texts.items():
        if not isinstance(text, str):
            raise _Bad(f"{field} is {_kind(text)}; expected a string")
        if not text and field != "prompt":
            raise _Bad(f"{field} is empty; expected some text")
        if not text.isascii():
            _check_unicode(field, text)
    return _Example(texts.get("prompt", ""), tuple(texts[field] for field in wanted if field != "prompt"))


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Bad(f"{field} holds half a character ({text[error.start]!r}); expected whole ones") from error


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(cast("type[Any]", type(value)), "a number")


class _Encoder:
    """Turns examples into data."""

    def __init__(self, config: "Config", tokenizer: Any) -> None:
        self.pairs = config.train.loss == "dpo"
        self._data = config.data
        self._mean = config.train.loss == "cross_entropy" and config.train.reduction == "mean"
        self._tokenizer = tokenizer
        begin, end = getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "eos_token_id", None)
        # As the tokenizer itself would begin a text.
        self._begin: list[int] = [begin] if begin is not None and self._encode("", special=True)[:1] == [begin] else []
        self._end: list[int] = [end] if end is not None and self._data.end_token else []

    def _encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def check(self, example: _Example) -> None:
        """Refuse an example of which nothing would be learned."""
        room = self._data.max_length
        # A token is a byte at least: only what may be too long, or too short, is worth a tokenizer's time.
        long = room is not None and len(example.prompt.encode()) + len(self._begin) >= room
        short = not example.prompt and not self._begin
        if not long and not short:
            return
        prompt = self._prompt(example)
        if room is not None and len(prompt) >= room:
            raise _Bad(f"its prompt has {len(prompt)} tokens, and data.max_length is {room}: nothing would be left")
        if short and any(len(self._completion(text)) < 2 for text in example.texts):
            raise _Bad("has no prompt and a completion of one token, of which nothing can be learned")

    def _prompt(self, example: _Example) -> list[int]:
        return [*self._begin, *self._encode(example.prompt)]

    def _completion(self, text: str) -> list[int]:
        return [*self._encode(text), *self._end]

    def batch(self, examples: Sequence[_Example]) -> list[Datum]:
        """The data of a step; where the loss is a mean, the targets that count have one together."""
        made = [row for example in examples for row in self._rows(example)]
        total = sum(float(weights.sum()) for _, weights in made) if self._mean else 1.0
        return [
            Datum(
                ModelInput.from_ints(tokens[:-1]),
                _inputs(tokens[1:], (weights / total).astype(np.float32)),
            )
            for tokens, weights in made
        ]

    def _rows(self, example: _Example) -> Iterator[tuple[list[int], np.ndarray[Any, Any]]]:
        """The tokens of each text of an example, and how much each target counts."""
        prompt = self._prompt(example)
        for text in example.texts:
            tokens = [*prompt, *self._completion(text)][: self._data.max_length]
            weights = np.ones(len(tokens) - 1)
            if self._data.mask_prompt:
                weights[: max(len(prompt) - 1, 0)] = 0.0
            yield tokens, weights


def _inputs(targets: Sequence[int], weights: np.ndarray[Any, Any]) -> Mapping[str, TensorData]:
    return {"target_tokens": TensorData(targets, "int64"), "weights": TensorData(weights, "float32")}
