"""A config of what was read: checked as a whole, with everything that is wrong, and what is left where something is."""

import copy
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from .config_messages import Place, found_wrong
from .config_problems import Problem
from .config_table import Table

__all__ = ["UNKNOWN", "read"]

UNKNOWN: Final = "?"
"""What stands in the place of something that must be there and is not."""

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
                _leave_out(left, one.place, one.missing)


def _leave_out(raw: Any, place: Place, missing: bool) -> None:
    """Take out what stands at a place, so that the numbers of terms stay what they are."""
    if place[-1] in ("fn", "path"):
        # What must be there: without it there is no term, and no data.
        pass
    elif missing:
        # A table without one of its keys is none.
        place = place[:-1]
    elif len(place) == 2 and place[0] == "term":
        place = (*place, "fn")
        raw["term"][place[1]] = {}
    lists = [index for index, part in enumerate(place) if isinstance(part, int) and index != 1]
    place = place[: lists[0]] if lists else place
    holder = raw
    for part in place[:-1]:
        if isinstance(part, str) and part not in holder:
            # Another mistake took the table out already.
            return
        holder = holder[part]
    if place[-1] in ("fn", "path"):
        holder[place[-1]] = UNKNOWN
    else:
        holder.pop(place[-1], None)
