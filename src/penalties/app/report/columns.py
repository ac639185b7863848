"""The numbers of step records, gathered into columns as the records are read."""

from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np

from ...pipeline.output import BASE
from .runlog import Floats, Ints

__all__ = ["Columns", "number", "parts_of"]

_OF_RUN: Final = ("step", "seconds", "tokens", "learning_rate")
_OF_LOSS: Final = ("loss_total", "total_grad_norm")
_OF_TERM: Final = ("value", "weight", "grad_norm")


class Columns:
    """The numbers in step records that a report shows. The index of a record counts step records only."""

    def __init__(self) -> None:
        """No records yet."""
        self.count: int = 0
        """Step records so far."""
        self.terms: dict[str, None] = {}
        """The names of terms, in the order of their first appearance."""
        self.errors: dict[str, list[tuple[int, str]]] = {}
        """By term: the index of the record, and the message."""
        self.cosines: dict[tuple[str, ...], tuple[list[int], list[Any]]] = {}
        """By the names of rows and columns: the index of each record, and its matrix."""
        self._columns: dict[tuple[str, str], list[Any]] = {}
        """By quantity and term: the values of the records so far, None for a record without one."""

    def add(self, record: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        """Add the numbers of one step record; `parts` are those of its loss."""
        keep, loss = self._keep, record["loss"]
        for what in _OF_RUN:
            keep(what, "", record.get(what))
        for what in _OF_LOSS:
            keep(what, "", loss.get(what))
        for name, part in parts.items():
            self.terms[name] = None
            for what in _OF_TERM:
                keep(what, name, part.get(what))
        for name, duration in _table(record, "durations").items():
            keep("duration", name, duration)
        for name, message in _table(record, "errors").items():
            if isinstance(message, str):
                self.terms[name] = None
                self.errors.setdefault(name, []).append((self.count, message))
        if "cosines" in loss:
            indices, matrices = self.cosines.setdefault(tuple(parts), ([], []))
            indices.append(self.count)
            matrices.append(loss["cosines"])
        self.count += 1

    def _keep(self, what: str, term: str, value: Any) -> None:
        column = self._columns.get((what, term))
        if column is None:
            column = self._columns[what, term] = []
        if len(column) < self.count:
            column += [None] * (self.count - len(column))
        column.append(value)

    def numbers(self, what: str, term: str = "") -> tuple[Ints, Floats]:
        """The indices of the records that have this number, and the numbers."""
        found = self._columns.get((what, term), [])
        if all(type(value) is float for value in found):
            return np.arange(len(found)), np.array(found, np.float64)
        values = [number(value) for value in found]
        there = [index for index, value in enumerate(values) if value is not None]
        return np.array(there, np.int64), np.array([values[index] for index in there], np.float64)


def number(found: Any) -> float | None:
    """A number from a log, in which NaN and infinity are strings; None for anything else."""
    if isinstance(found, str):
        return float(found) if found in ("NaN", "Infinity", "-Infinity") else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    # Converted through text, an integer of 400 digits becomes infinite instead of raising.
    return float(found) if isinstance(found, float) or abs(found) < 2**53 else float(str(found))


def parts_of(loss: Mapping[str, Any]) -> dict[str, Any]:
    """The base loss, if there is one, then the terms by name: the order of the cosine matrix."""
    return {**({BASE: loss["base_loss"]} if "base_loss" in loss else {}), **loss.get("regularizers", {})}


def _table(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = record.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
