"""Which terms a kernel can compute together: those of the same kind over the same arrays."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from ... import kernels
from ...functional.penalty import DISTRIBUTIONS, Classwise, Elementwise, facts_of
from ...kernels import distributions, elementwise
from ..binding import Enclosing
from ..inputs import CallInputs
from ..targets import Targets
from ..term import Term, Weight
from .fused import FusedDistributions, FusedElements, FusedGroup
from .sharing import Reader, reader_of

__all__ = ["Found", "Fusing", "nothing_to_fuse"]


class _Pair(NamedTuple):
    """The arrays of a group of class-wise penalties, and how their rows become distributions."""

    x: str
    y: str | None
    """The names of inputs: of one tensor under two names, each has its own gradient."""
    temperature: float
    logits: bool
    labels: str | None = None
    """The name of their targets."""


class _Read(NamedTuple):
    """What a class-wise penalty reads."""

    names: list[str]
    """Of its distributions."""
    mask: str | None
    labels: str | None
    """Of its targets."""


class _Member(NamedTuple):
    """A class-wise penalty of a group."""

    position: int
    part: distributions.Part
    mask: str | None
    labels: str | None


class Found(NamedTuple):
    """A group of terms that one kernel computes."""

    indices: list[int]
    reason: str
    """Why they are together."""
    fused: FusedGroup


def nothing_to_fuse(inputs: CallInputs, targets: Targets | None) -> str | None:
    """Why no kernel serves any term of this call; None where one may."""
    first = inputs.like if targets is None else targets.leaves[0]
    if (reason := kernels.unavailable(first)) is not None:
        return reason
    if targets is None and (reason := kernels.triton_unavailable(first)) is not None:
        return f"{reason}, and no gradients are requested"
    if targets is not None and len(targets.leaves) == 1 and (reason := elementwise.too_small(first)) is not None:
        return reason
    # A compiler keeps a kernel as it is; torch.func cannot look into one, and gradients there are its own.
    if inputs.transformed and not (inputs.traced and targets is None):
        return "a compiler or a transform traces the call"
    return None


class Fusing:
    """Takes the terms of a call one by one, and groups them."""

    def __init__(self, inputs: CallInputs, targets: Targets | None) -> None:
        """For a call with these inputs and targets."""
        self.inputs = inputs
        self.targets = targets
        self._leaves: dict[str, tuple[int, ...]] = {}
        """By name of an input, the indices of its leaves among those of the targets."""
        self._elements: dict[tuple[int, ...], list[tuple[int, elementwise.Part]]] = {}
        self._classes: dict[_Pair, list[_Member]] = {}
        self._chunked: set[int] = set()
        """The indices of class-wise penalties that would be computed in chunks."""
        self._arrays: dict[str, tuple[Any, int | None]] = {}
        """By name: an array, and its index among the leaves of the targets."""
        self._read: dict[tuple[tuple[str, str], ...], _Read | str] = {}
        """By parameters and names of inputs, which several penalties have in common; or why no kernel reads them."""

    def offer(self, index: int, term: Term, weight: Weight, due: Any) -> str | None:
        """Take the term into a group, or say why it is computed by itself."""
        if term.runs != "inline" or term.asynchronous:
            return f'runs="{"async" if term.asynchronous else term.runs}"'
        if term.compile:
            return "compile=True"
        if isinstance(term.fn, Enclosing):
            return term.fn.apart
        if term.closed_form is None or not term.differentiable:
            own = facts_of(term.fn) is None
            return "your own function" if own else "no kernel computes this penalty with these options"
        if term.on_error == "skip":
            return "it may be skipped, and a kernel adds up the gradients of all its terms"
        if due is not True:
            return "the step is traced"
        if self.targets is not None and not isinstance(weight, int | float):
            return "its weight is an array"
        if isinstance(term.closed_form, Elementwise):
            return self._offer_elementwise(index, term, term.closed_form)
        return self._offer_classwise(index, term, term.closed_form)

    def _offer_elementwise(self, index: int, term: Term, form: Elementwise) -> str | None:
        targets = self.targets
        if targets is None:
            return "no gradients are requested"
        if term.chunk is not None:
            return "it is computed in chunks"
        (name,) = term.inputs.values()
        if name not in self._leaves:
            same = (leaf for leaf, target in enumerate(targets.names) if self.inputs.same(name, target))
            self._leaves[name] = tuple(same)
        leaves = self._leaves[name]
        if not leaves or len(leaves) != len(targets.nests[targets.names[leaves[0]]].leaves):
            return "gradients are not taken at all of its input"
        if leaves not in self._elements:
            reason = elementwise.unsupported([targets.leaves[leaf] for leaf in leaves])
            if reason is not None:
                return reason
        group = self._elements.get(leaves, [])
        deltas = {part.delta for part in (form, *(part.form for _, part in group)) if part.bent}
        if len(deltas) > elementwise.MOST_DELTAS:
            return f"more than {elementwise.MOST_DELTAS} different deltas over one input"
        self._elements.setdefault(leaves, group).append((index, elementwise.Part(form, term.reduction == "mean")))
        return None

    def _offer_classwise(self, index: int, term: Term, form: Classwise) -> str | None:
        if any(term.options.get(parameter) is not None for parameter in (*DISTRIBUTIONS, "mask", "targets")):
            return "its mask, or another of its arrays, is an option, not an input"
        key = tuple(term.inputs.items())
        if key not in self._read:
            self._read[key] = self._reading(reader_of(term, self.inputs))
        read = self._read[key]
        if isinstance(read, str):
            return read
        x, y = read.names[0], read.names[1] if len(read.names) == 2 else None
        if y is not None and self._turns(x, y, form):
            x, y = y, x
        if self.targets is not None and self._arrays[x][1] is None:
            return "no gradient is taken at its inputs"
        if term.chunk is not None:
            self._chunked.add(index)
        part = distributions.Part(form, x != read.names[0], term.reduction == "mean")
        pair = _Pair(x, y, form.temperature, form.logits, read.labels)
        self._classes.setdefault(pair, []).append(_Member(index, part, read.mask, read.labels))
        return None

    def _reading(self, reader: Reader) -> "_Read | str":
        """What penalties with these inputs read, or why no kernel reads it."""
        arrays = list(reader.distributions.values())
        masks = [reader.mask] if "mask" in reader.others else []
        mask, _ = reader.others.get("mask", (None, None))
        labels, classes = reader.others.get("targets", (None, None))
        for _, array in arrays:
            if (reason := kernels.unavailable(array) or kernels.triton_unavailable(array)) is not None:
                return reason
        if (reason := distributions.unsupported(arrays[0][1], arrays[-1][1], masks, classes)) is not None:
            return reason
        names = [name for name, _ in arrays]
        if len(set(names)) < len(names):
            return "its inputs are one array"
        targets = self.targets
        for parameter, (name, array) in (reader.distributions | reader.others).items():
            leaf = None if targets is None else targets.leaf_of(name, array)
            if targets is not None and (leaf is None or parameter == "mask") and targets.touched_by(name):
                return f"gradients are taken at {name}, a mask or a part of another input"
            if leaf is None and targets is not None and array.requires_grad:
                return f"{name} requires a gradient that this call does not take"
            self._arrays[name] = array, leaf
        return _Read(names, mask, labels)

    def _turns(self, p: str, q: str, form: Classwise) -> bool:
        """Whether q is to be the group's first array: the one that has a gradient, or as in a group that there is."""
        if _Pair(q, p, form.temperature, form.logits) in self._classes:
            return True
        return not self._has_gradient(p) and self._has_gradient(q)

    def _has_gradient(self, name: str) -> bool:
        found, leaf = self._arrays[name]
        return found.requires_grad if self.targets is None else leaf is not None

    def groups(self) -> Iterator[Found]:
        """The groups of all terms that were taken."""
        for leaves, members in self._elements.items():
            assert self.targets is not None, "element-wise penalties are fused for their gradients"
            what = self.targets.names[leaves[0]]
            reason = f"one sweep over {what} by a kernel for element-wise penalties"
            yield Found([index for index, _ in members], reason, FusedElements(leaves, [part for _, part in members]))
        for pair, members in self._joined().items():
            names = [name for name in (pair.x, pair.y) if name is not None]
            instead = ", in place of chunk=" if any(one.position in self._chunked for one in members) else ""
            reason = f"one pass over {' and '.join(names)} by a kernel for distributions{instead}"
            leaves = [self._arrays[name][1] for name in names]
            # Without sorting whole members, which torch.compile cannot trace.
            members = sorted(members, key=lambda member: member.position)
            indices, parts, masks, labels = map(list, zip(*members, strict=True))
            yield Found(indices, reason, FusedDistributions(names, leaves, parts, masks, labels))

    def _joined(self) -> dict[_Pair, list[_Member]]:
        """The groups of class-wise penalties; those of one array join one of a pair that it is the first of.

        So do those with targets, unless the group has others.
        """
        joined = {pair: list(members) for pair, members in self._classes.items() if pair.y is not None}
        alone = [pair for pair in self._classes if pair.y is None]
        for pair in sorted(alone, key=lambda pair: pair.labels is None):
            like = (
                other
                for other in joined
                if other._replace(y=None, labels=None) == pair._replace(labels=None)
                and (pair.labels is None or other.labels in (None, pair.labels))
            )
            other = next(like, pair)
            members = [*joined.pop(other, []), *self._classes[pair]]
            joined[other._replace(labels=other.labels or pair.labels)] = members
        return joined
