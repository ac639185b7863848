"""A chart as data: its words, and the specification that the page's script draws."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from ..numbers import steps_shown

__all__ = ["SIGNS", "Chart", "Scale", "Sign", "Size", "Unit", "as_json"]

Unit: TypeAlias = Literal["", "share", "seconds", "bytes"]
Size: TypeAlias = Literal["full", "half", "third", "spark"]
Scale: TypeAlias = Literal["linear", "log", "asinh"]
Sign: TypeAlias = Literal["broken", "moment", "failed"]

SIGNS: Final[dict[Sign, str]] = {"broken": "×", "moment": "↻", "failed": "|"}
"""The sign of each kind in a chart."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, ready for the page."""

    title: str
    spec: Mapping[str, Any]
    """What the script draws: plain data."""
    label: str
    """For screen readers."""
    note: str = ""
    size: Size = "half"
    legend: Sequence[tuple[str, str, bool, str]] = ()
    """The name of each line, its CSS classes, whether it is drawn at first, and its letter."""
    signs: Sequence[tuple[Sign, str]] = field(default=())
    """What marks in it mean."""
    ends: tuple[int, int] = (0, 0)
    """The first and the last step, if it is over steps."""
    points: int = 0
    """How many points the cursor visits, if it is not over steps."""

    @property
    def rows(self) -> int:
        """How many rows it has, if it is of rows."""
        return len(self.spec.get("rows", ()))

    @property
    def data(self) -> str:
        """The specification as JSON, which may stand inside of a script."""
        return as_json(self.spec)


def as_json(value: Any) -> str:
    """JSON that may stand inside of a script: "</script>" and "<!--" must not appear there."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def between(first: int, last: int) -> str:
    """The steps of a chart in words."""
    return f"steps {steps_shown(first)} to {steps_shown(last)}"
