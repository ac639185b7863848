"""Which terms of a call are evaluated together, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import kernels
from ..functional.penalty import facts_of
from .inputs import CallInputs
from .table import table
from .targets import Targets
from .term import Term, Weight

__all__ = ["Fused", "Group", "Job", "Plan", "plan_of"]


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


class Fused(NamedTuple):
    """How one kernel computes all terms of a group."""

    kernel: kernels.ElementwiseKernel
    leaf: int
    """The index of the one leaf that all of them read, among those of the targets."""


class Group(NamedTuple):
    """One or more terms that are evaluated together."""

    jobs: tuple[Job, ...]
    reason: str
    """Why these, and no others."""
    fused: Fused | None = None
    """None where the term's own function computes it."""

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
        return "\n".join([count, *table(["terms", "why"], lines, indent="  ")]) if lines else count


def plan_of(jobs: Sequence[Job], inputs: CallInputs, targets: Targets | None, *, hold: bool) -> Plan:
    """The groups of these jobs: terms that one kernel computes together, and every other term by itself.

    `hold` says that the gradient of each term is needed by itself, which a kernel does not write.
    """
    if targets is None:
        return _apart(jobs, "by itself: no gradients are requested")
    if hold:
        return _apart(jobs, "by itself: its gradient is held for cosines, or kept")
    if inputs.traced or targets.ops.tracing(targets.leaves[0]):
        return _apart(jobs, "by itself: a compiler or a transform traces the call")
    groups: list[Group] = []
    # By leaf: the kernel or why there is none, and the index of the group that reads it.
    known: dict[int, kernels.ElementwiseKernel | str] = {}
    fused: dict[int, int] = {}
    for job in jobs:
        leaf = _leaf_of(job, inputs, targets)
        if isinstance(leaf, str):
            groups.append(Group((job,), leaf))
            continue
        if leaf not in known:
            known[leaf] = kernels.elementwise_kernel(targets.leaves[leaf])
        kernel = known[leaf]
        if isinstance(kernel, str):
            groups.append(Group((job,), kernel))
            continue
        if leaf not in fused:
            fused[leaf] = len(groups)
            reason = f"one sweep over {targets.names[leaf]} by a kernel for element-wise penalties"
            groups.append(Group((), reason, Fused(kernel, leaf)))
        group = groups[fused[leaf]]
        groups[fused[leaf]] = Group((*group.jobs, job), group.reason, group.fused)
    return Plan(tuple(groups))


def _apart(jobs: Sequence[Job], reason: str) -> Plan:
    return Plan(tuple([Group((job,), reason) for job in jobs]))


def _leaf_of(job: Job, inputs: CallInputs, targets: Targets) -> int | str:
    """The index of the leaf that a kernel could read for this term; or why none can."""
    term = job.term
    if term.runs != "inline" or term.asynchronous:
        return f'by itself: runs="{"async" if term.asynchronous else term.runs}"'
    if term.closed_form is None or not term.differentiable or term.chunk is not None:
        own = facts_of(term.fn) is None
        return f"by itself: {'your own function' if own else 'no kernel computes this penalty with these options'}"
    if term.on_error == "skip":
        return "by itself: it may be skipped, and a kernel adds up the gradients of all its terms"
    if not isinstance(job.weight, int | float):
        return "by itself: its weight is an array"
    if job.due is not True:
        return "by itself: the step is traced"
    (name,) = term.inputs.values()
    leaves = [index for index, target in enumerate(targets.names) if inputs.same(name, target)]
    if len(leaves) != 1 or targets.leaves[leaves[0]] is not inputs.find(term.name, name):
        return "by itself: its input is not a single array that gradients are taken at"
    return leaves[0]
