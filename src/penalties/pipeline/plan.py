"""Which terms of a call are evaluated together, and why."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from .. import kernels
from ..arrays import is_array
from ..backends import owner
from .groups.fused import FusedGroup
from .groups.fusing import Found, Fusing, nothing_to_fuse
from .groups.lazy import Lazily, lazily
from .groups.sharing import Shared, shared
from .groups.together import Together, together
from .inputs import CallInputs
from .table import Table
from .targets import Targets
from .term import Term, Weight

__all__ = ["Group", "Job", "Plan", "Plans", "plan_of"]

_MOST_KINDS: Final = 64
"""Of inputs, that a pipeline keeps plans for."""


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


class Plans:
    """The plans of a pipeline by the kind of inputs: a training loop plans its first step, and the others follow."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        """None yet."""
        self._made: dict[Hashable, Sequence[_Planned]] = {}

    def of(self, jobs: Sequence[Job], inputs: CallInputs, targets: Targets | None, *, hold: bool) -> Plan:
        """As `plan_of`; made once for all calls that agree in what a plan depends on."""
        kind = _kind(jobs, inputs, targets, hold)
        if kind is None:
            return plan_of(jobs, inputs, targets, hold=hold)
        groups = self._made.get(kind)
        if groups is None:
            if len(self._made) >= _MOST_KINDS:
                # Shapes that do not come back, as of batches of any length.
                self._made.clear()
            groups = self._made[kind] = _planned(jobs, inputs, targets, hold)
        return _with_jobs(groups, jobs)


def plan_of(jobs: Sequence[Job], inputs: CallInputs, targets: Targets | None, *, hold: bool) -> Plan:
    """The groups of these jobs: terms of one kernel, of one log_softmax, or of one graph; others by themselves.

    `hold` says that the gradient of each term is needed by itself, which a kernel does not write.
    """
    return _with_jobs(_planned(jobs, inputs, targets, hold), jobs)


class _Planned(NamedTuple):
    """A group without the jobs of a call, and so without its arrays."""

    indices: Sequence[int]
    reason: str
    fused: FusedGroup | None = None


def _with_jobs(groups: Sequence[_Planned], jobs: Sequence[Job]) -> Plan:
    return Plan(tuple([Group(tuple([jobs[index] for index in one.indices]), one.reason, one.fused) for one in groups]))


def _kind(jobs: Sequence[Job], inputs: CallInputs, targets: Targets | None, hold: bool) -> Hashable | None:
    """All that a plan depends on; None where an input is a nest, or a compiler or a transform traces the call."""
    if inputs.transformed:
        return None
    named = inputs.named
    kinds: list[Hashable] = []
    for given in named.values():
        ops = owner(given)
        if ops is None:
            return None
        kinds.append(ops.kind(given))
    for job in jobs:
        if not (inputs.alone or all([name in named for name in job.term.inputs.values()])):  # noqa: C419
            return None
        kinds += (job.term.name, isinstance(job.weight, int | float), job.due is True)
    wrt = None if targets is None else tuple(targets.nests)
    return (inputs.alone, hold, wrt, *named, *kinds, kernels.circumstances())


def _planned(jobs: Sequence[Job], inputs: CallInputs, targets: Targets | None, hold: bool) -> list[_Planned]:
    reason = "its gradient is held for cosines, or kept" if hold else nothing_to_fuse(inputs, targets)
    reasons: list[str | None] = [reason] * len(jobs)
    found: list[Found | Shared | Lazily | Together] = []
    over_logits: dict[int, str] = {}
    if not all(map(is_array, inputs.named.values())):
        lazy, over_logits = lazily(
            [(index, job.term, job.weight, job.due) for index, job in enumerate(jobs)], inputs, targets, hold=hold
        )
        found += lazy
    taken = {*over_logits, *[index for one in found for index in one.indices]}
    if reason is None:
        fusing = Fusing(inputs, targets)
        reasons = [
            "" if index in taken else fusing.offer(index, job.term, job.weight, job.due)
            for index, job in enumerate(jobs)
        ]
        found += list(fusing.groups())
    for index, why in over_logits.items():
        reasons[index] = why
    rest = [
        (index, job.term, job.due)
        for index, job in enumerate(jobs)
        if reasons[index] is not None and index not in taken
    ]
    found += [*shared(rest, inputs, targets, hold=hold), *together(rest, inputs, targets)]
    first = {one.indices[0]: one for one in found}
    taken = {index for one in found for index in one.indices}
    groups: list[_Planned] = []
    for index, (job, reason) in enumerate(zip(jobs, reasons, strict=True)):
        if index in first:
            one = first[index]
            groups.append(_Planned(one.indices, one.reason, one.fused))
        elif index not in taken:
            compiled = job.term.compile and index not in over_logits
            groups.append(_Planned((index,), f"by itself: {'a graph of torch.compile' if compiled else reason}"))
    return groups
