"""The numbers of step lines, fast.

A run repeats itself: line after line has the same keys and differs in its numbers. The first line of a shape is parsed
as JSON and becomes a regular expression that captures the numbers that are wanted; lines of the same shape are then
matched by it, in a third of the time of parsing them. A line that no shape matches is parsed, so that the result is
the same for any JSON.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np

from ...pipeline.output import BASE
from .runlog import Floats, Ints

__all__ = ["Columns", "Field", "number"]

_BLOCK: Final = 2048
"""Lines that are kept as text before they become numbers."""
_SHAPES: Final = 48
"""A log with more shapes than this gains nothing by them: an expression takes milliseconds to compile."""

_COSINES: Final = "cosines"
_ERROR: Final = "error"
_KEYS: Final = {"value", "weight", "contribution", "grad_norm", "grad_norm_weighted", "custom", "grad_norms"}
_KEYS_AFTER: Final = {"grad_error", "duration", "error", "regularizer_total", "total_grad_norm", "cosines"}
"""What stands beside terms or in them: a term of such a name could be mistaken for it."""

Cosines: TypeAlias = tuple[Ints, tuple[str, ...], Any]
"""Places, names of rows and columns, and a matrix for each place."""


class Field(NamedTuple):
    """What a number is, and the term that it is of."""

    what: str
    term: str = ""


@dataclass(slots=True)
class _Shape:
    """Lines that differ in their numbers alone, and those seen so far."""

    match: Callable[[str, int], re.Match[str] | None]
    fields: list[Field]
    names: tuple[str, ...]
    places: list[int] = field(default_factory=list[int])
    rows: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])


class Columns:
    """The wanted numbers of step lines; the place of a line is how many such lines are before it."""

    def __init__(self, *, shapes: bool = True) -> None:
        """Empty; `shapes=False` parses every line."""
        self.count: int = 0
        """Step lines so far."""
        self.terms: dict[str, None] = {}
        """The names of terms, in the order of their first appearance."""
        self.errors: dict[str, list[tuple[int, str]]] = {}
        """By term, with the place."""
        self.cosines: list[Cosines] = []
        self._attempts = _SHAPES if shapes else 0
        self._shapes: dict[tuple[int, int], list[_Shape]] = {}
        self._recent: _Shape | None = None
        self._blocks: dict[Field, list[tuple[Ints, Floats]]] = {}
        self._single: dict[Field, tuple[list[int], list[float]]] = {}

    def take(self, text: str, start: int) -> int:
        """Take lines of known shapes from here on, as long as there are any; gives where the next one starts."""
        shape = self._recent
        while shape is not None:
            match, rows, places, count = shape.match, shape.rows, shape.places, self.count
            found = match(text, start)
            while found is not None:
                rows.append(found.groups())
                places.append(count)
                count += 1
                if len(rows) >= _BLOCK:
                    self._flush(shape)
                    rows, places = shape.rows, shape.places
                start = found.end()
                found = match(text, start)
            self.count = count
            shape = self._other(text, start)
        return start

    def _other(self, text: str, start: int) -> _Shape | None:
        for shape in self._shapes.get(_key(text, start), ()):
            if shape.match(text, start) is not None:
                self._recent = shape
                return shape
        return None

    def add(self, record: Mapping[str, Any], line: str) -> None:
        """Take a parsed line, and know its shape from now on."""
        names = _names(record)
        self.terms |= dict.fromkeys(names)
        for path, leaf in _leaves(record, ()):
            known = _field(path)
            if known is not None:
                self._keep(known, leaf, names)
        self.count += 1
        if self._attempts > 0:
            self._attempts -= 1
            shape = _shape(record, line, names)
            if shape is not None:
                self._shapes.setdefault(_key(line, 0), []).insert(0, shape)
                self._recent = shape

    def finish(self) -> None:
        """Turn what is still text into numbers; a `ValueError` where a shape took something that is none."""
        for shapes in self._shapes.values():
            for shape in shapes:
                self._flush(shape)

    def numbers(self, what: str, term: str = "") -> tuple[Ints, Floats]:
        """The places that have this number, rising, and the numbers."""
        known = Field(what, term)
        single, values = self._single.get(known, ([], []))
        blocks = [(np.array(single, np.int64), np.array(values, np.float64)), *self._blocks.get(known, ())]
        places = np.concatenate([places for places, _ in blocks])
        order = np.argsort(places, kind="stable")
        return places[order], np.concatenate([values for _, values in blocks])[order]

    def _keep(self, known: Field, leaf: Any, names: tuple[str, ...]) -> None:
        if known.what == _COSINES:
            self.cosines.append((np.array([self.count]), names, [leaf]))
        elif known.what == _ERROR:
            if isinstance(leaf, str):
                self.terms[known.term] = None
                self.errors.setdefault(known.term, []).append((self.count, leaf))
        else:
            value = number(leaf)
            if value is not None:
                places, values = self._single.setdefault(known, ([], []))
                places.append(self.count)
                values.append(value)

    def _flush(self, shape: _Shape) -> None:
        if not shape.rows:
            return
        places = np.array(shape.places, np.int64)
        for known, column in zip(shape.fields, zip(*shape.rows, strict=True), strict=True):
            if known.what == _COSINES:
                self.cosines.append((places, shape.names, json.loads(f"[{','.join(column)}]")))
            elif known.what == _ERROR:
                self.errors.setdefault(known.term, []).extend(zip(shape.places, column, strict=True))
            else:
                self._blocks.setdefault(known, []).append(_floats(places, column))
        shape.rows, shape.places = [], []


def _key(text: str, start: int) -> tuple[int, int]:
    """What lines of one shape share and those of another seldom do, at little cost."""
    end = text.find("\n", start)
    end = len(text) if end < 0 else end
    return text.count(": ", start, end), text.count("[", start, end)


def _floats(places: Ints, column: tuple[str, ...]) -> tuple[Ints, Floats]:
    first = column[0]
    try:
        if column[-1] == first and column.count(first) == len(column):
            # A weight that no schedule changes: one number, not one for each line.
            return places, np.full(len(column), float(first))
        return places, np.fromiter(map(float, column), np.float64, len(column))
    except ValueError:
        # Some are null, or words.
        found = [number(json.loads(text)) for text in column]
        there = np.array([value is not None for value in found])
        return places[there], np.array([value for value in found if value is not None], np.float64)


def number(leaf: Any) -> float | None:
    """A number as a log has it, NaN and infinity as words; None for anything else."""
    if isinstance(leaf, str):
        return float(leaf) if leaf in ("NaN", "Infinity", "-Infinity") else None
    if isinstance(leaf, bool) or not isinstance(leaf, int | float):
        return None
    # By its text, as a shape reads it: a whole number of 400 digits is infinite, not an error.
    return float(leaf) if isinstance(leaf, float) or abs(leaf) < 2**53 else float(str(leaf))


def _names(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The terms of a line, the base loss first: the order of its cosines."""
    loss: Any = record["loss"]
    return (*([BASE] if "base_loss" in loss else []), *loss.get("regularizers", {}))


def _field(path: tuple[str, ...]) -> Field | None:
    match path:
        case ("step" | "seconds" | "tokens" | "learning_rate" as what,):
            return Field(what)
        case ("loss", "loss_total" | "total_grad_norm" | "cosines" as what):
            return Field(what)
        case ("loss", "base_loss", "value" | "grad_norm" as what):
            return Field(what, BASE)
        case ("loss", "regularizers", name, "value" | "weight" | "grad_norm" as what):
            return Field(what, name)
        case ("durations", name):
            return Field("duration", name)
        case ("errors", name):
            return Field(_ERROR, name)
        case _:
            return None


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for key, part in cast("dict[str, Any]", value).items():
            yield from _leaves(part, (*path, key))
    else:
        yield path, value


def _shape(record: Mapping[str, Any], line: str, names: tuple[str, ...]) -> _Shape | None:
    """The shape of a line; None where it is not written as `json.dumps` writes, or could be mistaken."""
    if not (_KEYS | _KEYS_AFTER).isdisjoint(names):
        return None
    fields: list[Field] = []
    match = re.compile(_pattern(record, (), fields, "") + r"\n").match
    return None if match(f"{line}\n") is None else _Shape(match, fields, names)


def _pattern(value: Any, path: tuple[str, ...], fields: list[Field], after: str) -> str:
    """An expression for lines like this one, by what stands `after` the value; wanted numbers become groups."""
    if isinstance(value, dict) and path == ("metrics",):
        # Many numbers of the client's, of which none is wanted.
        return r"\{[^{}]*+\}"
    if isinstance(value, dict):
        items = list(cast("dict[str, Any]", value).items())
        parts = [
            f"{re.escape(json.dumps(key))}: {_pattern(part, (*path, key), fields, ',' if rest else '}')}"
            for rest, (key, part) in zip(range(len(items) - 1, -1, -1), items, strict=True)
        ]
        return r"\{" + ", ".join(parts) + r"\}"
    known = _field(path)
    what = None if known is None else known.what
    word = isinstance(value, str) and number(value) is None
    if isinstance(value, list):
        # Of numbers, or of rows of numbers: the only lists of a step.
        pattern, wanted = r"\[[^{}]*\]", what == _COSINES
    elif word:
        pattern, wanted = (re.escape(value) if path == ("kind",) else r'[^"\\]*+'), what == _ERROR
    elif what == "step":
        pattern, wanted = r"\d{1,15}", True
    else:
        # A number, null or NaN: as far as it goes is found sooner by its end than by its signs.
        pattern, wanted = ("[^,]++" if after == "," else "[^,}]++"), what not in (None, _COSINES, _ERROR)
    if wanted and known is not None:
        fields.append(known)
        pattern = f"({pattern})"
    return f'"{pattern}"' if word else pattern
