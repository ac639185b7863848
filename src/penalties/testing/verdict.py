"""The results of checking a term."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..pipeline.table import table

__all__ = ["Check", "Status", "Verdict"]

Status: TypeAlias = Literal["passed", "failed", "skipped", "note"]
"""A note is worth knowing, but not a failure for where the term runs."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a verdict.

    >>> from penalties.testing import Check
    >>> Check("value", "failed", "nan at the given inputs").status
    'failed'
    """

    name: str
    status: Status
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of every check of a term. It is true if none failed, and prints as a table.

    >>> from penalties.testing import Check, Verdict
    >>> verdict = Verdict("l1", (Check("value", "passed", "3, float32"), Check("state", "skipped", "takes no state")))
    >>> verdict.ok
    True
    >>> print(verdict)
    l1: no check failed
      check  status   detail
      value  passed   3, float32
      state  skipped  takes no state
    """

    term: str
    """The name of the term."""
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.status == "failed")

    def __bool__(self) -> bool:
        """The same as `ok`."""
        return self.ok

    def __str__(self) -> str:
        """The outcome in one line, and a table."""
        rows = [[check.name, check.status, check.detail] for check in self.checks]
        outcome = f"failed: {', '.join(self.failed)}" if self.failed else "no check failed"
        return "\n".join([f"{self.term}: {outcome}", *table(["check", "status", "detail"], rows, indent="  ")])
