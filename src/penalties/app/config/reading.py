"""A config of what was read: checked as a whole, with everything that is wrong, and what is left where something is."""

import copy
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError

from ..problems import Problem
from .messages import KeyPath, found_wrong
from .table import Table

__all__ = ["UNKNOWN", "read"]

UNKNOWN: Final = "?"
"""What stands in the path of something that must be there and is not."""

TableT = TypeVar("TableT", bound=Table)


def read(table: type[TableT], raw: Mapping[str, Any]) -> tuple[TableT, list[Problem]]:
    """The table of what is right, and everything that is wrong.

    What is wrong is left out and the rest read again, so that what fits together can be checked all the same: one
    mistake does not hide another.
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
    """Take out the key that a path is in, so that the numbers of terms stay what they are."""
    table, *rest = path
    if not rest:
        # Another mistake may have taken it out already.
        raw.pop(table, None)
        if table == "data":
            raw["data"] = {"path": UNKNOWN}
    elif isinstance(rest[0], int):
        terms = cast("list[Any]", raw["term"])
        if len(rest) == 1 or rest[1] == "fn":
            # What is no table, or has no function, stays as a term that is not known.
            terms[rest[0]] = {**(terms[rest[0]] if len(rest) > 1 else {}), "fn": UNKNOWN}
        else:
            terms[rest[0]].pop(rest[1], None)
    elif (table, rest[0]) == ("data", "path"):
        raw["data"]["path"] = UNKNOWN
    else:
        raw[table].pop(rest[0], None)
