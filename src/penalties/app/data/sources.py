"""Files of examples: JSON lines, plain text, Parquet, and folders of the library datasets."""

import array
import codecs
import contextlib
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, cast

from ...errors import said
from ...training.libraries import library
from ..problems import DataError, Problem, joined
from .encoding import Encoder
from .examples import KEYS, PAIRWISE, Bad, Example, Text, example_of
from .token_arrays import KEYS as ARRAY_KEYS

__all__ = ["Source", "count", "open_source", "package_for"]

_LISTED: Final = 20
"""Bad lines of a file that are listed; the others are counted."""
_BATCH: Final = 1000
"""Rows of a table that are checked at a time."""
_PARQUET: Final = ".parquet"
_TEXT: Final = ".txt"


class Source(ABC):
    """The good examples of a file, each with its number; the first bad ones are listed, and all are counted."""

    unit: str = "line"
    """What the file has."""

    def __init__(self, path: str, encoder: Encoder) -> None:
        """Check every example."""
        self.path: Path = Path(path)
        self.problems: list[Problem] = []
        self.bad: int = 0
        """How many cannot be used."""
        self.fingerprint: str = ""
        self.encoder: Encoder = encoder
        self._numbers = array.array("q")

    def __len__(self) -> int:
        """How many can be used."""
        return len(self._numbers)

    def wrong(self, on_bad_line: str) -> list[Problem]:
        """Why the file cannot be used; empty if it can."""
        if self.problems and on_bad_line == "error":
            return self.problems
        if self._numbers:
            return []
        there = f"all {self.bad} are bad; the first: {self.problems[0]}" if self.problems else "there is none"
        return [Problem("file", f"no {self.unit} can be used: {there}")]

    def _add(self, number: int, found: "Bad | Example") -> bool:
        """Add an example, or what is wrong with it; returns whether it can be used."""
        try:
            if isinstance(found, Bad):
                raise found
            self.encoder.check(found)
        except Bad as bad:
            self.bad += 1
            if len(self.problems) < _LISTED:
                self.problems.append(Problem(f"{self.unit} {number}", str(bad)))
            return False
        self._numbers.append(number)
        return True

    @abstractmethod
    def read(self, indices: Sequence[int]) -> list[Example]:
        """The examples at these indices."""


class _Lines(Source):
    """JSON lines, or lines of text; only the offsets of the good ones are kept."""

    def __init__(self, path: str, encoder: Encoder) -> None:
        super().__init__(path, encoder)
        self._starts = array.array("q")
        digest = _digest()
        start = 0
        with self.path.open("rb") as file:
            self._stamp = _stamp(file)
            for number, line in enumerate(file, 1):
                digest.update(line)
                if _said(line) and self._add(number, self._parsed(line)):
                    self._starts.append(start)
                start += len(line)
        self.fingerprint = digest.hexdigest()

    def read(self, indices: Sequence[int]) -> list[Example]:
        examples: list[Example] = []
        with self.path.open("rb") as file:
            self._check_same(file)
            for index in indices:
                file.seek(self._starts[index])
                found = self._parsed(file.readline())
                if isinstance(found, Bad):
                    problem = Problem(f"line {self._numbers[index]}", f"changed during the run: {found}")
                    raise DataError(self.path.name, [problem]) from found
                examples.append(found)
        return examples

    def _check_same(self, file: BufferedReader) -> None:
        """Raise if the contents of the file changed; a new modification time alone is fine."""
        stamp = _stamp(file)
        if stamp == self._stamp:
            return
        if hashlib.file_digest(file, _digest).hexdigest() != self.fingerprint:
            raise _changed(self.path)
        self._stamp = stamp

    def _parsed(self, line: bytes) -> "Bad | Example":
        try:
            if self.path.suffix == _TEXT:
                text = line.decode("utf-8-sig").rstrip("\r\n")
                loss = self.encoder.loss
                if loss == PAIRWISE or loss in ARRAY_KEYS:
                    wanted = "pairs" if loss == PAIRWISE else f"JSON lines with {joined(ARRAY_KEYS[loss], 'and')}"
                    return Bad(f'is text; expected {wanted}, for train.loss = "{loss}"')
                return (Text("", text),)
            return example_of(json.loads(line.decode("utf-8-sig").rstrip()), self.encoder.loss)
        except Bad as bad:
            return bad
        except json.JSONDecodeError as error:
            return Bad(f"is not JSON: {error.msg.lower()}, at column {error.colno}")
        except UnicodeDecodeError as error:
            return Bad(f"is not UTF-8: {error.reason}, at byte {error.start + 1}")
        except RecursionError:
            return Bad("is nested too deeply")
        except ValueError:
            # The errors above are ValueErrors too.
            return Bad("has a number with too many digits")


class _Table(Source):
    """Rows of a table; only the numbers of the good ones are kept."""

    unit = "row"

    def __init__(self, path: str, encoder: Encoder) -> None:
        super().__init__(path, encoder)
        self._files = self._opened()
        self._stamps = [_stamp_of(file) for file in self._files]
        self.fingerprint = self._hashed()
        for number, row in enumerate(self._rows(), 1):
            self._add(number, self._example(row))

    @abstractmethod
    def _opened(self) -> list[Path]:
        """Open the table; returns its files."""

    @abstractmethod
    def _rows(self) -> Iterator[Mapping[str, Any]]: ...

    @abstractmethod
    def _at(self, rows: Sequence[int]) -> list[Mapping[str, Any]]: ...

    def _columns(self, there: Sequence[str]) -> list[str]:
        """The columns that are read."""
        known = [name for name in there if name in KEYS]
        if not known:
            message = f"has the columns {joined(there, 'and')}; expected {joined(KEYS)}"
            raise DataError(self.path.name, [Problem("file", message)])
        return known

    def _example(self, row: Mapping[str, Any]) -> "Bad | Example":
        try:
            # A table has every column in each row.
            return example_of({key: value for key, value in row.items() if value is not None}, self.encoder.loss)
        except Bad as bad:
            return bad

    def _hashed(self) -> str:
        digest = _digest()
        for path in self._files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, _digest).digest())
        return digest.hexdigest()

    def read(self, indices: Sequence[int]) -> list[Example]:
        stamps = [_stamp_of(file) for file in self._files]
        if stamps != self._stamps:
            if self._hashed() != self.fingerprint:
                raise _changed(self.path)
            self._stamps = stamps
        rows = self._at([self._numbers[index] - 1 for index in indices])
        return [found for row in rows if not isinstance(found := self._example(row), Bad)]


class _Parquet(_Table):
    """A Parquet file, of which the columns that are read are held in memory."""

    def _opened(self) -> list[Path]:
        parquet = library(f'data.path = "{self.path.name}"', "pyarrow.parquet", "data")
        with _reading(self.path):
            file = parquet.ParquetFile(self.path)
            self._table: Any = file.read(columns=self._columns(file.schema_arrow.names))
        return [self.path]

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        for batch in self._table.to_batches(max_chunksize=_BATCH):
            yield from batch.to_pylist()

    def _at(self, rows: Sequence[int]) -> list[Mapping[str, Any]]:
        return self._table.take(list(rows)).to_pylist()


class _Folder(_Table):
    """A folder that `save_to_disk` of the library datasets wrote, mapped into memory."""

    def _opened(self) -> list[Path]:
        found = _dataset(self.path)
        self._data: Any = found.select_columns(self._columns(found.column_names))
        return sorted(Path(one["filename"]) for one in found.cache_files)

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        for start in range(0, len(self._data), _BATCH):
            yield from self._at(range(start, min(start + _BATCH, len(self._data))))

    def _at(self, rows: Sequence[int]) -> list[Mapping[str, Any]]:
        columns: dict[str, list[Any]] = self._data[list(rows)]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def open_source(path: str, encoder: Encoder) -> Source:
    """The examples of a file, by its form."""
    if os.path.isdir(path):
        return _Folder(path, encoder)
    return _Parquet(path, encoder) if path.endswith(_PARQUET) else _Lines(path, encoder)


def package_for(path: str) -> str | None:
    """The package that a file needs to be read; None for lines."""
    return "datasets" if os.path.isdir(path) else "pyarrow" if path.endswith(_PARQUET) else None


def count(path: str) -> int:
    """How many examples a file has, good and bad, without looking at them."""
    if os.path.isdir(path):
        return len(_dataset(Path(path)))
    if path.endswith(_PARQUET):
        parquet = library(f'data.path = "{os.path.basename(path)}"', "pyarrow.parquet", "data")
        with _reading(Path(path)):
            return parquet.ParquetFile(path).metadata.num_rows
    with open(path, "rb") as file:
        return sum(_said(line) for line in file)


def _dataset(path: Path) -> Any:
    """The dataset in a folder, one split."""
    datasets = library(f'data.path = "{path.name}"', "datasets", "data")
    with _reading(path), _without_bars(datasets):
        found = datasets.load_from_disk(str(path))
    if isinstance(found, Mapping):
        splits = joined([f"{path.name}/{name}" for name in cast("Mapping[str, Any]", found)])
        raise DataError(path.name, [Problem("folder", f"has several splits; expected one: use {splits}")])
    return found.with_format(None)


@contextlib.contextmanager
def _without_bars(datasets: Any) -> Generator[None]:
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def _reading(path: Path) -> Generator[None]:
    """Errors of a library about a file, with its name."""
    try:
        yield
    except (OSError, ValueError) as error:
        where, form = ("folder", "a dataset, as save_to_disk writes it") if path.is_dir() else ("file", "Parquet")
        message = f"cannot be read as {form}: {said(error).splitlines()[0]}"
        raise DataError(path.name, [Problem(where, message)]) from error


def _said(line: bytes) -> bool:
    """Whether a line has more than blanks, and perhaps the mark of a file's beginning."""
    return bool(line.removeprefix(codecs.BOM_UTF8).strip())


def _changed(path: Path) -> DataError:
    message = "changed while the run was reading it; restore it, then resume"
    return DataError(path.name, [Problem("file", message)])


def _digest() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=16)


def _stamp(file: BufferedReader) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def _stamp_of(path: Path) -> tuple[int, int]:
    with path.open("rb") as file:
        return _stamp(file)
