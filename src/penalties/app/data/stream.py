"""The examples of a config's files, as data for a client."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...training.types import Datum
from ..problems import DataError, Problem
from .encoding import Encoder
from .examples import Chat, Example, Prompt, Text
from .grouping import Grouping
from .mixture import Mixture, Pick
from .sources import Source, open_source

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["Lengths", "Stream"]

_MEASURED: Final = 10_000
"""Examples whose tokens are counted for a summary."""


class Lengths(NamedTuple):
    """A summary of how many tokens examples have."""

    measured: int
    """The number of texts it is about."""
    median: int
    most: int
    """95 % have at most this many."""
    longest: int
    cut: int
    """How many are longer than `data.max_length`."""
    lost: float
    """The share of all tokens that is cut off."""


class Stream:
    """The examples of a config's files, as data for a client.

    Each file is read once when it is opened: every example is checked, and only its position is kept. `batch(step)`
    always returns the same data for a step, so that a run can be resumed anywhere.

    A `prompt` and its `completion` are joined without anything between them; the prompt has weight 0, unless
    `mask_prompt` is off. Of `messages` the assistant's turns are learned. A pair, `chosen` and `rejected`, is two data,
    the chosen one first. Bad lines are `problems`: they are left out, or raise one `DataError`. A line with more tokens
    than the model reads, `limit`, is a bad line.
    """

    def __init__(self, config: "Config", tokenizer: Any, limit: int | None = None) -> None:
        """Read the files once, and check every example."""
        self._config = config
        self._encoder = Encoder(config, tokenizer, limit)
        data = config.data
        paths = data.paths
        # One file may be both.
        every: dict[str, None] = dict.fromkeys([*paths, *([] if data.eval_path is None else [data.eval_path])])
        self._files: dict[str, Source] = {path: open_source(path, self._encoder) for path in every}
        self._sources = [self._files[path] for path in paths]
        self._held_out = None if data.eval_path is None else self._files[data.eval_path]
        wrong = [(source, found) for source in self._files.values() if (found := source.wrong(data.on_bad_line))]
        more = sum(source.bad - len(source.problems) for source, _ in wrong) if data.on_bad_line == "error" else 0
        if len(wrong) == 1:
            ((source, problems),) = wrong
            raise DataError(source.path.name, problems, more)
        if wrong:
            raise DataError("data", [one for source, some in wrong for one in _named(source, some)], more)
        sizes = [len(source) for source in self._sources]
        self.chat: bool = isinstance(self._sources[0].read([0])[0][0], Chat)
        """Whether the first example is a conversation; what the model is asked then is the turn of a user."""
        self._mixture = Mixture(sizes, data.weights, config.train.seed, shuffle=data.shuffle)
        self._grouping: Grouping | None = None
        if data.group_by_length:
            train = config.train
            self._grouping = Grouping(
                self._mixture.pick, self._longest, size=train.batch_size, steps=train.steps, seed=train.seed
            )

    def __len__(self) -> int:
        """The number of lines to train on."""
        return sum(len(source) for source in self._sources)

    @property
    def problems(self) -> list[Problem]:
        """The first lines of each file that were left out, and why."""
        return [problem for source in self._files.values() for problem in _named(source, source.problems)]

    @property
    def bad(self) -> int:
        """How many lines were left out."""
        return sum(source.bad for source in self._files.values())

    @property
    def fingerprint(self) -> str:
        """A hash of the contents of the files: a run cannot be resumed with others."""
        sources = [*self._sources, *([] if self._held_out is None else [self._held_out])]
        return "-".join(source.fingerprint for source in sources)

    @property
    def fingerprints(self) -> dict[str, str]:
        """The same for the training data and for the held-out data alone, to compare runs by."""
        found = {"training": "-".join(source.fingerprint for source in self._sources)}
        return found if self._held_out is None else {**found, "held_out": self._held_out.fingerprint}

    def batch(self, step: int) -> list[Datum]:
        """The data of a step, counted from 0: `batch_size` lines, in the order of this pass through the files.

        With `data.group_by_length` these are lines of similar lengths among those of some steps.
        """
        size = self._config.train.batch_size
        if self._grouping is not None:
            return self._read(self._grouping.batch(step))
        return self._read([self._mixture.pick(number) for number in range(step * size, (step + 1) * size)])

    def once(self, steps: int) -> Iterator[list[Datum]]:
        """The data of so many steps, in batches, but each example once."""
        size = self._config.train.batch_size
        picks: dict[Pick, None] = {}
        for number in range(steps * size):
            picks[self._mixture.pick(number)] = None
            if len(picks) == len(self):
                break
        listed = list(picks)
        for start in range(0, len(listed), size):
            yield self._read(listed[start : start + size])

    def _read(self, picks: Sequence[Pick]) -> list[Datum]:
        return self._encoder.batch(self._examples(picks))

    def _examples(self, picks: Sequence[Pick]) -> list[Example]:
        # One read per file.
        found: dict[int, Iterator[Example]] = {}
        for file in dict.fromkeys(pick.file for pick in picks):
            found[file] = iter(self._sources[file].read([pick.row for pick in picks if pick.file == file]))
        return [next(found[pick.file]) for pick in picks]

    def _longest(self, picks: Sequence[Pick]) -> list[int]:
        """How many tokens the longest text of each example has."""
        room = self._config.data.max_length
        found = [max(self._encoder.lengths(example)) for example in self._examples(picks)]
        return found if room is None else [min(one, room) for one in found]

    def eval_batches(self) -> Iterator[list[Datum]]:
        """The held-out data, in the order of their file; the last batch may be smaller."""
        source, size = self._held_out, self._config.train.batch_size
        for start in range(0, 0 if source is None else len(source), size):
            assert source is not None, "there are some"
            yield self._encoder.batch(source.read(range(start, min(start + size, len(source)))))

    def held_out(self, count: int) -> list[tuple[Prompt, str]]:
        """The prompts and completions of the first so many held-out lines; those without a prompt are left out.

        The completion of a conversation is the last turn of the assistant, and its prompt the messages before it.
        """
        source = self._held_out
        rows = [] if source is None else [example[0] for example in source.read(range(min(count, len(source))))]
        split = [(row.prompt, row.text) if isinstance(row, Text) else row.split() for row in rows]
        return [(prompt, completion) for prompt, completion in split if prompt]

    def lengths(self) -> Lengths:
        """How many tokens the texts to train on have; of very many lines some are counted, evenly spread."""
        room = self._config.data.max_length
        found = np.array([size for source in self._sources for size in self._counted(source)])
        cut = np.maximum(found - (room or found.max()), 0)
        median, most = (int(one) for one in np.percentile(found, (50, 95), method="closest_observation"))
        return Lengths(len(found), median, most, int(found.max()), int((cut > 0).sum()), float(cut.sum() / found.sum()))

    def _counted(self, source: Source) -> Iterator[int]:
        step = max(1, len(self) // _MEASURED)
        indices: Sequence[int] = range(0, len(source), step)
        for start in range(0, len(indices), 100):
            for example in source.read(indices[start : start + 100]):
                yield from self._encoder.lengths(example)


def _named(source: Source, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of a file, with its name."""
    return [Problem(f"{source.path.name}: {one.where}", one.message) for one in problems]
