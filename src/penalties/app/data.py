"""The data of a run: JSON lines, read when they are needed, in an order that depends only on the seed and the step."""

import array
import codecs
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np

from ..training.types import Datum, ModelInput, TensorData
from .problems import DataError, Problem, joined, nearest

if TYPE_CHECKING:
    from .config import Config

__all__ = ["Stream"]

_FIELDS: Final = {False: ("prompt", "completion"), True: ("chosen", "rejected")}
"""The required keys of a line, by whether it is a pair."""


class Stream:
    """The examples of a config's files, as data for a client.

    The file is read once when it is opened: every line is checked, and only the offset of each is kept. `batch(step)`
    always returns the same data for a step, so that a run can be resumed anywhere.

    A `prompt` and its `completion` are joined without anything between them; the prompt has weight 0, unless
    `mask_prompt` is off. A pair, `chosen` and `rejected`, is two data, the chosen one first. Bad lines are `problems`:
    they are left out, or raise one `DataError`. A line with more tokens than the model reads, `limit`, is a bad line.
    """

    def __init__(self, config: "Config", tokenizer: Any, limit: int | None = None) -> None:
        """Read the files once, and check every line."""
        self._config = config
        self._encoder = _Encoder(config, tokenizer, limit)
        data = config.data
        # One file may be both.
        paths = dict.fromkeys(path for path in (data.path, data.eval_path) if path is not None)
        self._files = {path: _Lines(path, self._encoder) for path in paths}
        self._lines = self._files[data.path]
        self._held_out = None if data.eval_path is None else self._files[data.eval_path]
        self._order: tuple[int, np.ndarray[Any, Any]] | None = None
        wrong = [(lines, problems) for lines in self._files.values() if (problems := lines.wrong(data.on_bad_line))]
        if len(wrong) == 1:
            ((lines, problems),) = wrong
            raise DataError(lines.path.name, problems)
        if wrong:
            said = [Problem(f"{lines.path.name}: {one.where}", one.message) for lines, some in wrong for one in some]
            raise DataError("data", said)

    def __len__(self) -> int:
        """The number of lines to train on."""
        return len(self._lines)

    @property
    def problems(self) -> list[Problem]:
        """The lines that were left out, and why."""
        return [problem for lines in self._files.values() for problem in lines.problems]

    @property
    def fingerprint(self) -> str:
        """A hash of the contents of the files: a run cannot be resumed with others."""
        held_out = "" if self._held_out is None else f"-{self._held_out.fingerprint}"
        return f"{self._lines.fingerprint}{held_out}"

    def batch(self, step: int) -> list[Datum]:
        """The data of a step, counted from 0: `batch_size` lines, in the order of this pass through the file."""
        size = self._config.train.batch_size
        indices = [self._index(number) for number in range(step * size, (step + 1) * size)]
        return self._encoder.batch(self._lines.read(indices))

    def eval_batches(self) -> Iterator[list[Datum]]:
        """The held-out data, in the order of their file; the last batch may be smaller."""
        lines, size = self._held_out, self._config.train.batch_size
        for start in range(0, 0 if lines is None else len(lines), size):
            assert lines is not None, "there are some"
            yield self._encoder.batch(lines.read(range(start, min(start + size, len(lines)))))

    def _index(self, number: int) -> int:
        """The index of the line that is trained on as the nth."""
        turn, index = divmod(number, len(self._lines))
        if not self._config.data.shuffle:
            return index
        if self._order is None or self._order[0] != turn:
            random = np.random.default_rng([self._config.train.seed, turn])
            self._order = turn, random.permutation(len(self._lines))
        return int(self._order[1][index])


class _Example(NamedTuple):
    """The texts of a line."""

    prompt: str
    texts: tuple[str, ...]
    """The completion; or the chosen and the rejected one."""


class _Bad(Exception):
    """A line that cannot be used."""


class _Lines:
    """A file of JSON lines; only the offsets of the good ones are kept."""

    def __init__(self, path: str, encoder: "_Encoder") -> None:
        self.path = Path(path)
        self.problems: list[Problem] = []
        self._encoder = encoder
        self._starts = array.array("q")
        self._numbers = array.array("q")
        digest = _digest()
        start = 0
        with self.path.open("rb") as file:
            self._stamp = _stamp(file)
            for number, line in enumerate(file, 1):
                digest.update(line)
                self._look_at(number, start, line)
                start += len(line)
        self.fingerprint = digest.hexdigest()

    def wrong(self, on_bad_line: str) -> list[Problem]:
        """Why the file cannot be used; empty if it can."""
        if self.problems and on_bad_line == "error":
            return self.problems
        if self._starts:
            return []
        there = f"all {len(self.problems)} are bad, first {self.problems[0]}" if self.problems else "there is none"
        return [Problem("file", f"no line can be used: {there}")]

    def _look_at(self, number: int, start: int, line: bytes) -> None:
        try:
            if not line.removeprefix(codecs.BOM_UTF8).strip():
                return
            self._encoder.check(_parsed(line, self._encoder.pairs))
        except _Bad as bad:
            self.problems.append(Problem(f"line {number}", str(bad)))
        else:
            self._starts.append(start)
            self._numbers.append(number)

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, indices: Sequence[int]) -> list[_Example]:
        """The examples of the lines at these indices."""
        examples: list[_Example] = []
        with self.path.open("rb") as file:
            self._check_same(file)
            for index in indices:
                file.seek(self._starts[index])
                try:
                    examples.append(_parsed(file.readline(), self._encoder.pairs))
                except _Bad as bad:
                    problem = Problem(f"line {self._numbers[index]}", f"changed during the run: {bad}")
                    raise DataError(self.path.name, [problem]) from bad
        return examples

    def _check_same(self, file: BufferedReader) -> None:
        """Raise if the contents of the file changed; a new modification time alone is fine."""
        stamp = _stamp(file)
        if stamp == self._stamp:
            return
        if hashlib.file_digest(file, _digest).hexdigest() != self.fingerprint:
            message = "changed while the run was reading it; restore it, then resume"
            raise DataError(self.path.name, [Problem("file", message)])
        self._stamp = stamp


def _digest() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=16)


def _stamp(file: BufferedReader) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def _parsed(line: bytes, pairs: bool) -> _Example:
    """The example of a line."""
    try:
        found: Any = json.loads(line.decode("utf-8-sig").rstrip())
    except json.JSONDecodeError as error:
        raise _Bad(f"is not JSON: {error.msg.lower()}, at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise _Bad(f"is not UTF-8: {error.reason}, at byte {error.start + 1}") from error
    except RecursionError as error:
        raise _Bad("is nested too deeply") from error
    except ValueError as error:
        # The errors above are ValueErrors too.
        raise _Bad("has a number with too many digits") from error
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
            raise _Bad(f'has no "{field}"; found {joined(given or ["nothing"], "and")}{hint}')
    texts = {field: given[field] for field in ("prompt", *wanted) if field in given}
    for field, text in texts.items():
        if not isinstance(text, str):
            raise _Bad(f"{field} is {_kind(text)}; expected a string")
        if not text and field != "prompt":
            raise _Bad(f"{field} is empty; expected some text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = repr(text[error.start])
            raise _Bad(f"{field} has half of a surrogate pair ({half}); expected valid Unicode") from error
    return _Example(texts.get("prompt", ""), tuple(texts[field] for field in wanted if field != "prompt"))


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(cast("type[Any]", type(value)), "a number")


class _Encoder:
    """Encodes examples as data."""

    def __init__(self, config: "Config", tokenizer: Any, limit: int | None) -> None:
        self.pairs = config.train.loss == "dpo"
        self._data = config.data
        self._mean = config.train.loss == "cross_entropy" and config.train.reduction == "mean"
        self._tokenizer = tokenizer
        self._limit = limit
        begin, end = getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "eos_token_id", None)
        # As the tokenizer itself starts a text.
        self._begin: list[int] = [begin] if begin is not None and self._encode("", special=True)[:1] == [begin] else []
        self._end: list[int] = [end] if end is not None and self._data.end_token else []

    def _encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def check(self, example: _Example) -> None:
        """Raise for an example from which nothing could be learned, or that is too long for the model."""
        room, limit = self._data.max_length, self._limit
        # A token is at least a byte: the tokenizer is needed only for what may be too long or too short.
        begins = len(self._begin) + len(example.prompt.encode())
        tight = room is not None and begins >= room
        long = limit is not None and begins + max(len(text.encode()) for text in example.texts) > limit
        short = not example.prompt and not self._begin
        if not tight and not long and not short:
            return
        prompt = self._prompt(example)
        if room is not None and len(prompt) >= room:
            raise _Bad(f"its prompt has {len(prompt)} tokens, but data.max_length is {room}; nothing would be left")
        lengths = [len(prompt) + len(self._completion(text)) for text in example.texts]
        if min(lengths) < 2:
            raise _Bad("has no prompt and a completion of one token, from which nothing can be learned")
        # The last token is only a target; the model does not read it.
        longest = max(lengths)
        if limit is not None and min(longest, room or longest) - 1 > limit:
            cut = f"set data.max_length = {limit + 1} to cut it"
            raise _Bad(f"has {longest} tokens, but the model reads at most {limit}; {cut}")

    def _prompt(self, example: _Example) -> list[int]:
        return [*self._begin, *self._encode(example.prompt)]

    def _completion(self, text: str) -> list[int]:
        return [*self._encode(text), *self._end]

    def batch(self, examples: Sequence[_Example]) -> list[Datum]:
        """The data of a step; if the loss is a mean, the weights of its targets add up to 1."""
        made = [row for example in examples for row in self._rows(example)]
        total = sum(float(weights.sum()) for _, weights in made) if self._mean else 1.0
        return [
            Datum(
                ModelInput.from_ints(tokens[:-1]),
                {
                    "target_tokens": TensorData(tokens[1:], "int64"),
                    "weights": TensorData((weights / total).astype(np.float32), "float32"),
                },
            )
            for tokens, weights in made
        ]

    def _rows(self, example: _Example) -> Iterator[tuple[list[int], np.ndarray[Any, Any]]]:
        """The tokens of each text of an example, and the weight of each target."""
        prompt = self._prompt(example)
        for text in example.texts:
            tokens = [*prompt, *self._completion(text)][: self._data.max_length]
            weights = np.ones(len(tokens) - 1)
            if self._data.mask_prompt:
                weights[: max(len(prompt) - 1, 0)] = 0.0
            yield tokens, weights
