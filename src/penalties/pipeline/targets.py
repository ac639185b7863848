"""What gradients are taken with respect to."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import trees
from ..arrays import Logits
from ..backends import Backend, owner
from ..errors import BackendError, GradientError, InputError, TermError
from ..functional.nests import Nest, flatten
from .evaluation import Evaluation
from .inputs import CallInputs, lookup
from .term import Term

__all__ = ["Gradients", "Targets", "is_followed", "requires_gradient"]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Which gradients a call takes."""

    wrt: Sequence[str] | None
    """The inputs that they are taken at; None is every input that requires one."""
    cosines: bool = False
    keep: bool = False
    """Whether the output has the gradient of each term."""
    accumulate: bool = False
    """Whether the gradient is added to the `.grad` of the leaves, instead of returned."""

    @property
    def hold(self) -> bool:
        """Whether the gradients of all terms are needed at once."""
        return self.cosines or self.keep


@dataclass(frozen=True, slots=True)
class Targets:
    """The leaves of some inputs that a gradient is taken at, and where they are in their inputs."""

    ops: Backend
    names: Sequence[str]
    """The input that each leaf belongs to."""
    leaves: Sequence[Any]
    positions: Sequence[int]
    """The index of each leaf among all leaves of its input."""
    nests: Mapping[str, Nest]
    wholes: Mapping[str, Any]
    """The inputs themselves."""
    inputs: CallInputs
    """The inputs of the call."""
    plain: bool
    """Whether every target is a single array."""
    parts: Mapping[str, tuple[str, str]]
    """Targets that are a part of `Logits`: the name of these, and of the part."""

    @classmethod
    def of(cls, function: str, inputs: CallInputs, wrt: Sequence[str], *, requested: bool = True) -> "Targets":
        """The leaves of the named inputs; unless `requested` by the user, only of those that require a gradient."""
        wholes: dict[str, Any] = {}
        wrt = tuple(dict.fromkeys(wrt))
        for name in wrt:
            whole = inputs.find(function, name)
            inside_another = any(name != other and inputs.lies_in(name, other) for other in wrt)
            if requested and inside_another:
                raise InputError(f'{function}: wrt names "{name}" and also an input that contains it; name one of them')
            if requested or (not inside_another and requires_gradient(whole)):
                wholes[name] = whole
        if not wholes:
            raise GradientError(_nothing_to_differentiate(function, inputs))
        nests = {name: flatten(function, name, whole) for name, whole in wholes.items()}
        first = next(iter(nests))
        ops = nests[first].ops
        # As they will be rebuilt: any iterable may be an input, and becomes a tuple.
        wholes = {name: nest.rebuild(nest.leaves) for name, nest in nests.items()}
        names: list[str] = []
        leaves: list[Any] = []
        positions: list[int] = []
        for name, nest in nests.items():
            if nest.ops is not ops:
                raise BackendError(
                    f"{function}: wrt names a {ops.LIBRARY} input ({first}) and a {nest.ops.LIBRARY} input ({name}); "
                    "expected one library"
                )
            # Frozen parameters among others stay frozen; an input of which none requires grad was named on purpose.
            chosen = [i for i, leaf in enumerate(nest.leaves) if ops.differentiable(leaf, requested=False)]
            chosen = chosen or [i for i, leaf in enumerate(nest.leaves) if ops.differentiable(leaf, requested=True)]
            if not chosen:
                raise GradientError(f"{function}: the input {name} has dtype {nest.leaves[0].dtype}; expected floats")
            names += [name] * len(chosen)
            positions += chosen
            leaves += [nest.leaves[i] for i in chosen]
        plain = all(nest.structure is None for nest in nests.values())
        parts = {name: part for name in nests if (part := _part_of_logits(inputs, name)) is not None}
        return cls(ops, names, leaves, positions, nests, wholes, inputs, plain, parts)

    def inputs_at(self, indices: Sequence[int], leaves: Sequence[Any]) -> CallInputs:
        """The inputs of the call with these leaves at these indices."""
        changed: dict[str, list[Any]] = {}
        for index, leaf in zip(indices, leaves, strict=True):
            name = self.names[index]
            changed.setdefault(name, list(self.nests[name].leaves))[self.positions[index]] = leaf
        changes = {name: self.nests[name].rebuild(parts) for name, parts in changed.items()}
        for name in [name for name in changes if name in self.parts]:
            root, part = self.parts[name]
            whole = changes[root] if root in changes else self.inputs.find(name, root)
            changes[root] = dataclasses.replace(whole, **{part: changes[name]})
        return self.inputs.replaced(changes)

    def read_by(self, term: Term) -> Sequence[int]:
        """The indices of the leaves that a term reads."""
        if self.inputs.alone:
            return range(len(self.leaves))
        names = term.inputs.values()
        for target in self.nests:
            for name in names if "." in target else ():
                if name != target and self.inputs.lies_in(target, name) and name != self._logits_around(target):
                    raise InputError(
                        f'{term.name}: reads all of "{name}", and wrt names only "{target}" in it; '
                        f'expected wrt="{name}"'
                    )
        read = {
            target
            for target in self.nests
            for name in names
            if self.inputs.lies_in(name, target) or name == self._logits_around(target)
        }
        return [index for index, target in enumerate(self.names) if target in read]

    def _logits_around(self, target: str) -> str | None:
        """The name of the `Logits` that a target is a part of."""
        return self.parts[target][0] if target in self.parts else None

    def part_leaf(self, name: str, part: str, array: Any) -> int | None:
        """The index of a part of the `Logits` of this name among the leaves; None where it is not there."""
        for index, (target, leaf) in enumerate(zip(self.names, self.leaves, strict=True)):
            if leaf is array and (self.inputs.same(name, target) or self.parts.get(target) == (name, part)):
                return index
        return None

    @property
    def unread(self) -> str:
        """Why a term that reads none of them has no gradient."""
        return f"it does not read {', '.join(self.nests)}"

    def structured(self, gradients: Sequence[Any]) -> dict[str, Any]:
        """`{input: gradient}` with the structure of each input, and None where a leaf has none."""
        if self.plain:
            return dict(zip(self.names, gradients, strict=True))
        parts: dict[str, list[Any]] = {name: [None] * len(nest.leaves) for name, nest in self.nests.items()}
        for name, position, gradient in zip(self.names, self.positions, gradients, strict=True):
            parts[name][position] = gradient
        return {name: nest.rebuild(parts[name]) for name, nest in self.nests.items()}

    def leaves_of(self, gradient: Mapping[str, Any]) -> list[Any]:
        """The gradient at each leaf, from `{input: gradient}`."""
        if self.plain:
            return [gradient.get(name) for name in self.names]
        parts = {name: trees.pair(whole, gradient.get(name)) for name, whole in self.wholes.items()}
        return [parts[name][position] for name, position in zip(self.names, self.positions, strict=True)]

    def leaf_of(self, name: str, array: Any) -> int | None:
        """The index of an input that is one array among the leaves; None where it is not there."""
        for index, target in enumerate(self.names):
            if self.inputs.same(name, target) and self.leaves[index] is array:
                return index
        return None

    def touched_by(self, name: str) -> bool:
        """Whether an input of this name is a target, or lies in one, or one lies in it."""
        return any(self.inputs.lies_in(name, target) or self.inputs.lies_in(target, name) for target in self.nests)

    def indices_of(self, reader: str, name: str, nest: Any) -> list[int]:
        """For each array of what a term read under this name, the index of its leaf; −1 if it is none.

        By where an array is, not by which it is: one array may be several leaves, and a property may make another at
        each look.
        """
        indices = [-1 for _ in trees.arrays(nest)]
        index_at = {leaf: index for index, leaf in enumerate(zip(self.names, self.positions, strict=True))}
        for target in self.nests:
            for order, position in zip(range(len(indices)), self._positions(reader, name, nest, target), strict=False):
                indices[order] = index_at.get((target, position), indices[order])
        return indices

    def placed(self, pairs: Iterable[tuple[int, Any]]) -> list[Any]:
        """The gradient at each leaf, from gradients with the indices of their leaves; None is 0."""
        leaves: list[Any] = [None] * len(self.leaves)
        for index, gradient in pairs:
            if index >= 0 and gradient is not None:
                leaves[index] = gradient if leaves[index] is None else leaves[index] + gradient
        return leaves

    def _positions(self, reader: str, name: str, nest: Any, target: str) -> Sequence[int]:
        """For each array of a nest that a term read, its index among the leaves of the target; −1 if it is none."""
        if self.inputs.same(name, target):
            return range(len(self.nests[target].leaves))
        if self.inputs.lies_in(name, target):
            return _indices(reader, target, self.nests[target], name)
        if not self.inputs.lies_in(target, name):
            return ()
        whole = trees.flatten(nest)
        indices = _indices(reader, name, whole, target)
        return [indices.index(i) if i in indices else -1 for i in range(len(whole.leaves))]

    def measured(self, evaluation: Evaluation, gradients: Sequence[Any]) -> Evaluation:
        """The evaluation, given the gradient at each leaf, its norm, and that at each input if there are several."""
        present = [gradient for gradient in gradients if gradient is not None]
        if not present:
            evaluation.gradient, evaluation.grad_error = None, f"it has no gradient at {', '.join(self.nests)}"
            return evaluation
        norms: dict[str, Any] = {}
        if len(self.nests) > 1:
            for name in self.nests:
                own = [g for g, whose in zip(gradients, self.names, strict=True) if whose == name and g is not None]
                if own:
                    norms[name] = self.ops.norm(own)
        evaluation.gradient = self.structured(gradients)
        evaluation.grad_norm, evaluation.grad_norms = self.ops.norm(present), norms
        return evaluation


def _indices(reader: str, name: str, whole: Nest | trees.Flat, path: str) -> list[int]:
    """Which leaves of an input a path leads to: it is followed in a copy that has a mark in place of each leaf."""
    marks = [np.array(index) for index in range(len(whole.leaves))]
    index_of = {id(mark): index for index, mark in enumerate(marks)}
    try:
        return [index_of[id(mark)] for mark in trees.arrays(lookup(reader, {name: whole.rebuild(marks)}, path))]
    except Exception as error:
        raise TermError(
            reader,
            f'"{path}" is computed from "{name}" and not a part of it, so its gradient cannot be placed there; '
            f'expected wrt="{path}", or a term that runs inline',
            "gradient",
        ) from error


def _part_of_logits(inputs: CallInputs, name: str) -> tuple[str, str] | None:
    """The name of the `Logits` that an input of this name is a part of, and of the part."""
    root, _, part = name.rpartition(".")
    if inputs.alone or name in inputs.named or part not in ("hidden", "weight", "bias"):
        return None
    try:
        return (root, part) if isinstance(inputs.find(name, root), Logits) else None
    except InputError:
        return None


def requires_gradient(nest: Any) -> bool:
    """Whether a gradient is wanted at an array of the nest without a request: it requires one, or JAX follows it."""
    return any(
        (ops := owner(array)) is not None and ops.differentiable(array, requested=False) for array in trees.arrays(nest)
    )


def is_followed(array: Any) -> bool:
    """Whether the caller may differentiate with respect to this: it requires a gradient, or JAX follows it."""
    ops = owner(array)
    if ops is None or ops.LIBRARY == "NumPy":
        return False
    if ops.LIBRARY == "JAX":
        return ops.tracing(array) and ops.differentiable(array, requested=True)
    import torch

    return array.requires_grad and torch.is_grad_enabled()


def _nothing_to_differentiate(function: str, inputs: CallInputs) -> str:
    if not inputs.named:
        return f"{function}: no inputs were given, so there is nothing to take a gradient with respect to"
    return (
        f"{function}: no input requires a gradient; name some by wrt=, "
        f"or call requires_grad_() on them; given: {', '.join(inputs.named)}"
    )
