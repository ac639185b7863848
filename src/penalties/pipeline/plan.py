"""Which terms of a call are evaluated together, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..arrays import is_array
from .fused import FusedGroup
from .fusing import Found, Fusing, nothing_to_fuse
from .inputs import CallInputs
from .lazy import Lazily, lazily
from .sharing import Shared, shared
from .table import Table
from .targets import Targets
from .term import Term, Weight
from .together import Together, together

__all__ = ["Group", "Job", "Plan", "plan_of"]


@dataclass(frozen=True, slots=True)
class Job:
    """A term in one call."""

    index: int
    """Its position among the terms that are due, the base loss first."""
    term: Term
    weight: Weight
    """In this call."""
    state: Any = None
    """What it returned at the call before."""
    due: Any = True
    """Where the step is traced, an array that says whether the term counts at this step."""


class Group(NamedTuple):
    """One or more terms that are evaluated together."""

    jobs: tuple[Job, ...]
    reason: str
    """Why these, and no others."""
    fused: FusedGroup | None = None
    """None where the terms' own functions compute them; those of several are one graph."""

    @classmethod
    def of(cls, term: Term, state: Any = None) -> "Group":
        """A term by itself, outside any pipeline."""
        return cls((Job(0, term, term.weight, state),), "by itself")


@dataclass(frozen=True, slots=True)
class Plan:
    """The groups of a call, in the order in which they are evaluated; `print` shows them as a table."""

    groups: tuple[Group, ...]

    def __iter__(self) -> Iterator[Group]:
        """The groups in order."""
        return iter(self.groups)

    def __len__(self) -> int:
        """How many groups."""
        return len(self.groups)

    def __repr__(self) -> str:
        """A line for each group."""
        lines = [[", ".join(job.term.name for job in group.jobs), group.reason] for group in self.groups]
        count = f"Plan, {len(self)} group{'' if len(self) == 1 else 's'}"
        return Table(count, ["terms", "why"], lines).text()


def plan_of(jobs: Sequence[Job], inputs: CallInputs, targets: Targets | None, *, hold: bool) -> Plan:
    """The groups of these jobs: terms of one kernel, of one log_softmax, or of one graph; others by themselves.

    `hold` says that the gradient of each term is needed by itself, which a kernel does not write.
    """
    reason = "its gradient is held for cosines, or kept" if hold else nothing_to_fuse(inputs, targets)
    reasons: list[str | None] = [reason] * len(jobs)
    found: list[Found | Shared | Lazily | Together] = []
    over_logits: dict[int, str] = {}
    if not all(map(is_array, inputs.named.values())):
        lazy, over_logits = lazily(
            [(index, job.term, job.weight, job.due) for index, job in enumerate(jobs)], inputs, targets, hold=hold
        )
        found += lazy
    taken = {index for one in found for index in one.indices} | over_logits.keys()
    if reason is None:
        fusing = Fusing(inputs, targets)
        reasons = [
            "" if index in taken else fusing.offer(index, job.term, job.weight, job.due)
            for index, job in enumerate(jobs)
        ]
        found += fusing.groups()
    for index, why in over_logits.items():
        reasons[index] = why
    rest = [
        (index, job.term, job.due)
        for index, job in enumerate(jobs)
        if reasons[index] is not None and index not in taken
    ]
    found += shared(rest, inputs, targets, hold=hold)
    found += together(rest, inputs, targets)
    first = {one.indices[0]: one for one in found}
    taken = {index for one in found for index in one.indices}
    groups: list[Group] = []
    for index, (job, reason) in enumerate(zip(jobs, reasons, strict=True)):
        if index in first:
            one = first[index]
            groups.append(Group(tuple(jobs[each] for each in one.indices), one.reason, one.fused))
        elif index not in taken:
            compiled = job.term.compile and index not in over_logits
            groups.append(Group((job,), f"by itself: {'a graph of torch.compile' if compiled else reason}"))
    return Plan(tuple(groups))
