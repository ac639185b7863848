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
from typing import Any, Final, NamedTuple, cast

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


class Field(NamedTuple):
    """What a number is, and the term that it is of."""

    what: str
    term: str = ""


@dataclass(slots=True)
class _Shape:
    """Lines that differ in their numbers alone, and those seen so far."""

    match: Callable[[str], re.Match[str] | None]
    fields: list[Field]
    names: tuple[str, ...]
    places: list[int] = field(default_factory=list[int])
    rows: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])


class Columns:
    """The wanted numbers of step lines; `place` counts those lines."""

    def __init__(self, *, shapes: bool = True) -> None:
        """Empty; `shapes=False` parses every line."""
        self.terms: dict[str, None] = {}
        """The names of terms, in the order of their first appearance."""
        self.errors: dict[str, list[tuple[int, str]]] = {}
        """By term, with the place."""
        self.cosines: list[tuple[int, tuple[str, ...], Any]] = []
        """Place, names of rows and columns, matrix."""
        self._attempts = _SHAPES if shapes else 0
        self._shapes: dict[tuple[int, int], list[_Shape]] = {}
        self._recent: _Shape | None = None
        self._blocks: dict[Field, list[tuple[Ints, Floats]]] = {}
        self._single: dict[Field, tuple[list[int], list[float]]] = {}

    def match(self, line: str, place: int) -> bool:
        """Take a line of a known shape; False where its shape is not known."""
        shape = self._recent
        found = None if shape is None else shape.match(line)
        if shape is None or found is None:
            for other in self._shapes.get(_key(line), ()):
                found = other.match(line)
                if found is not None:
                    shape = self._recent = other
                    break
            else:
                return False
        shape.rows.append(found.groups())
        shape.places.append(place)
        if len(shape.rows) >= _BLOCK:
            self._flush(shape)
        return True

    def add(self, record: Mapping[str, Any], place: int, line: str) -> None:
        """Take a parsed line, and know its shape from now on."""
        names = _names(record)
        self.terms |= dict.fromkeys(names)
        for path, leaf in _leaves(record, ()):
            known = _field(path)
            if known is not None:
                self._keep(known, leaf, place, names)
        if self._attempts > 0:
            self._attempts -= 1
            shape = _shape(record, line, names)
            if shape is not None:
                self._shapes.setdefault(_key(line), []).insert(0, shape)

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

    def _keep(self, known: Field, leaf: Any, place: int, names: tuple[str, ...]) -> None:
        if known.what == _COSINES:
            self.cosines.append((place, names, leaf))
        elif known.what == _ERROR:
            self.terms[known.term] = None
            self.errors.setdefault(known.term, []).append((place, str(leaf)))
        else:
            value = number(leaf)
            if value is not None:
                places, values = self._single.setdefault(known, ([], []))
                places.append(place)
                values.append(value)

    def _flush(self, shape: _Shape) -> None:
        places = np.array(shape.places, np.int64)
        # Without rows there are no columns.
        for known, column in zip(shape.fields, zip(*shape.rows, strict=True), strict=False):
            if known.what == _COSINES:
                matrices = map(json.loads, column)
                self.cosines += [(place, shape.names, one) for place, one in zip(shape.places, matrices, strict=True)]
            elif known.what == _ERROR:
                self.errors.setdefault(known.term, []).extend(zip(shape.places, column, strict=True))
            else:
                self._blocks.setdefault(known, []).append((places, _floats(column)))
        shape.rows, shape.places = [], []


def _key(line: str) -> tuple[int, int]:
    """What lines of one shape share and those of another seldom do, at little cost."""
    return line.count('"'), line.count("[")


def _floats(column: tuple[str, ...]) -> Floats:
    first = column[0]
    if column[-1] == first and column.count(first) == len(column):
        # A weight that no schedule changes: one number, not one for each line.
        return np.full(len(column), float(first))
    return np.fromiter(map(float, column), np.float64, len(column))


def number(leaf: Any) -> float | None:
    """A number as a log has it, NaN and infinity as words; None for anything else."""
    if isinstance(leaf, str):
        return float(leaf) if leaf in ("NaN", "Infinity", "-Infinity") else None
    return float(leaf) if isinstance(leaf, int | float) and not isinstance(leaf, bool) else None


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
    """The shape of a line; None where it is not written as `json.dumps` writes."""
    fields: list[Field] = []
    # Behind the last number that is wanted anything may stand: there are many numbers of the client's.
    wanted, end, _ = _pattern(record, (), fields).rpartition(")")
    match = re.compile(wanted + end + r'(?=[",\]}]).*\}').fullmatch
    return None if match(line) is None else _Shape(match, fields, names)


def _pattern(value: Any, path: tuple[str, ...], fields: list[Field]) -> str:
    if isinstance(value, dict):
        parts = (
            f"{re.escape(json.dumps(key))}: {_pattern(part, (*path, key), fields)}"
            for key, part in cast("dict[str, Any]", value).items()
        )
        return r"\{" + ", ".join(parts) + r"\}"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    known = _field(path)
    what = None if known is None else known.what
    if isinstance(value, list):
        # Of numbers, or of rows of numbers: the only lists of a step.
        pattern, wanted = r"\[[^{}]*\]", what == _COSINES
    elif not isinstance(value, str):
        pattern, wanted = r"-?[\d.eE+-]+", what not in (None, _COSINES, _ERROR)
    elif number(value) is not None:
        pattern, wanted = value, what not in (None, _COSINES, _ERROR)
    elif path == ("kind",):
        pattern, wanted = re.escape(value), False
    else:
        pattern, wanted = r'[^"\\]*', what == _ERROR
    if wanted and known is not None:
        fields.append(known)
        pattern = f"({pattern})"
    return f'"{pattern}"' if isinstance(value, str) else pattern
