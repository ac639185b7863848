"""What gradients are taken with respect to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import trees
from ..backends import Backend, owner
from ..errors import BackendError, GradientError, InputError
from ..functional.nests import Nest, flatten
from .evaluation import Evaluation
from .inputs import CallInputs, reads
from .term import Term

__all__ = ["Targets", "requires_gradient"]


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

    @classmethod
    def of(cls, function: str, inputs: CallInputs, wrt: Sequence[str], *, requested: bool = True) -> "Targets":
        """The leaves of the named inputs; unless `requested` by the user, only of those that require a gradient."""
        wholes: dict[str, Any] = {}
        for name in dict.fromkeys(wrt):
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
        return cls(ops, names, leaves, positions, nests, wholes, inputs, plain)

    def inputs_at(self, indices: Sequence[int], leaves: Sequence[Any]) -> CallInputs:
        """The inputs of the call with these leaves at these indices."""
        changed: dict[str, list[Any]] = {}
        for index, leaf in zip(indices, leaves, strict=True):
            name = self.names[index]
            changed.setdefault(name, list(self.nests[name].leaves))[self.positions[index]] = leaf
        return self.inputs.replaced({name: self.nests[name].rebuild(parts) for name, parts in changed.items()})

    def read_by(self, term: Term) -> Sequence[int]:
        """The indices of the leaves that a term reads."""
        if self.inputs.alone:
            return range(len(self.leaves))
        names = term.inputs.values()
        for target in self.nests:
            for name in names if "." in target else ():
                if reads(target, name) and not reads(name, target):
                    raise InputError(
                        f'{term.name}: reads all of "{name}", and wrt names only "{target}" in it; '
                        f'expected wrt="{name}"'
                    )
        read = {target for target in self.nests for name in names if reads(name, target)}
        return [index for index, target in enumerate(self.names) if target in read]

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

    def placed(self, pairs: Iterable[tuple[str, Any, Any]]) -> list[Any]:
        """The gradient at each leaf, from `(input, array, gradient)` of all that a term read; None is 0.

        One array may be several inputs, or several parts of one: each gradient goes to its own.
        """
        leaves: list[Any] = [None] * len(self.leaves)
        free: dict[str, dict[int, list[int]]] = {}
        for name, array, part in pairs:
            if name not in free:
                free[name] = {}
                for index, (target, leaf) in enumerate(zip(self.names, self.leaves, strict=True)):
                    if self.inputs.lies_in(name, target) or self.inputs.lies_in(target, name):
                        free[name].setdefault(id(leaf), []).append(index)
            indices = free[name].get(id(array))
            index = indices.pop(0) if indices else None
            if index is not None and part is not None:
                leaves[index] = part if leaves[index] is None else leaves[index] + part
        return leaves

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


def requires_gradient(nest: Any) -> bool:
    """Whether a gradient is wanted at an array of the nest without a request: it requires one, or JAX follows it."""
    return any(
        (ops := owner(array)) is not None and ops.differentiable(array, requested=False) for array in trees.arrays(nest)
    )


def _nothing_to_differentiate(function: str, inputs: CallInputs) -> str:
    if not inputs.named:
        return f"{function}: no inputs were given, so there is nothing to take a gradient with respect to"
    return (
        f"{function}: no input requires a gradient; name some by wrt=, "
        f"or call requires_grad_() on them; given: {', '.join(inputs.named)}"
    )
