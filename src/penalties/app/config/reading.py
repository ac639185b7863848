"""From what was read to a config: every problem at once, and what is left without them."""

import copy
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError

from ..problems import Problem
from .messages import KeyPath, found_wrong
from .table import Table

__all__ = ["UNKNOWN", "read"]

UNKNOWN: Final = "?"
"""Stands in for a required value that is missing."""

TableT = TypeVar("TableT", bound=Table)


def read(table: type[TableT], raw: Mapping[str, Any]) -> tuple[TableT, list[Problem]]:
    """The table without its problems, and the problems.

    Whatever is wrong is left out and the rest is read again, so that one mistake does not hide another.
    """
    problems: dict[str, Problem] = {}
    left: Any = copy.deepcopy(dict(raw))
    while True:
        try:
            return table.model_validate(left), list(problems.values())
        except ValidationError as error:
            for one in found_wrong(error, table, raw):
                problems.setdefault(one.problem.where, one.problem)
                _leave_out(left, one.path)


def _leave_out(raw: Any, path: KeyPath) -> None:
    """Remove the key that a path leads to; terms keep their numbers."""
    table, *rest = path
    if not rest:
        # It may have been removed for another mistake.
        raw.pop(table, None)
        if table == "data":
            raw["data"] = {"path": UNKNOWN}
    elif isinstance(rest[0], int):
        terms = cast("list[Any]", raw["term"])
        if len(rest) == 1 or rest[1] == "fn":
            # Something that is not a table, or has no function, stays as an unknown term.
            terms[rest[0]] = {**(terms[rest[0]] if len(rest) > 1 else {}), "fn": UNKNOWN}
        else:
            terms[rest[0]].pop(rest[1], None)
    elif (table, rest[0]) == ("data", "path"):
        raw["data"]["path"] = UNKNOWN
    else:
        raw[table].pop(rest[0], None)
