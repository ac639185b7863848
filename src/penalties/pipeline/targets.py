"""What gradients are taken with respect to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backends import Backend
from ..errors import BackendError, GradientError, InputError
from ..functional.nests import Nest, flatten
from .inputs import arrays_in, lookup, paired, reads

__all__ = ["Targets"]


@dataclass(frozen=True, slots=True)
class Targets:
    """The leaves of some inputs that a gradient is taken at, and how they lie in their inputs."""

    ops: Backend
    names: Sequence[str]
    """The input that each leaf belongs to."""
    leaves: Sequence[Any]
    places: Sequence[int]
    """Where each leaf stands among all leaves of its input."""
    nests: Mapping[str, Nest]

    @classmethod
    def of(cls, function: str, inputs: Mapping[str, Any], wrt: Sequence[str], *, asked: bool = True) -> "Targets":
        """The leaves of the named inputs; unless they were `asked` for, of those that a gradient is wanted of."""
        nests: dict[str, Nest] = {}
        for name in dict.fromkeys(wrt):
            nest = lookup(function, inputs, name)
            inside_another = len(wrt) > 1 and any(name != other and reads(name, other) for other in wrt)
            if asked and inside_another:
                raise InputError(f'{function}: wrt names "{name}" and what it lies in; expected one of the two')
            if asked or (not inside_another and _wanted(nest)):
                nests[name] = flatten(function, name, nest)
        wanted = list(nests)
        if not wanted:
            raise GradientError(_nothing(function, inputs))
        ops = nests[wanted[0]].ops
        names: list[str] = []
        leaves: list[Any] = []
        places: list[int] = []
        for name, nest in nests.items():
            if nest.ops is not ops:
                raise BackendError(
                    f"{function}: wrt names a {ops.LIBRARY} input ({wanted[0]}) and a {nest.ops.LIBRARY} input "
                    f"({name}); expected one library"
                )
            # Frozen parameters among others stay frozen; an input without any that require grad is asked for by name.
            chosen = [i for i, leaf in enumerate(nest.leaves) if ops.differentiable(leaf, asked=False)]
            chosen = chosen or [i for i, leaf in enumerate(nest.leaves) if ops.differentiable(leaf, asked=True)]
            if not chosen:
                raise GradientError(f"{function}: the input {name} has dtype {nest.leaves[0].dtype}; expected floats")
            names += [name] * len(chosen)
            places += chosen
            leaves += [nest.leaves[i] for i in chosen]
        return cls(ops, names, leaves, places, nests)

    def replaced(self, inputs: Mapping[str, Any], places: Sequence[int], leaves: Sequence[Any]) -> Mapping[str, Any]:
        """The inputs with these leaves in the places that they have among all of ours."""
        changed: dict[str, list[Any]] = {}
        for place, leaf in zip(places, leaves, strict=True):
            name, index = self.names[place], self.places[place]
            changed.setdefault(name, list(self.nests[name].leaves))[index] = leaf
        return {**inputs, **{name: self.nests[name].rebuild(iter(parts)) for name, parts in changed.items()}}

    def structured(self, gradients: Sequence[Any]) -> dict[str, Any]:
        """`{input: gradient}` with the structure of each input, and None where a leaf has none."""
        parts: dict[str, list[Any]] = {name: [None] * len(nest.leaves) for name, nest in self.nests.items()}
        for name, place, gradient in zip(self.names, self.places, gradients, strict=True):
            parts[name][place] = gradient
        return {name: nest.rebuild(iter(parts[name])) for name, nest in self.nests.items()}

    def gathered(self, gradient: Mapping[str, Any]) -> list[Any]:
        """The gradient at each leaf, of gradients by input."""
        leaves = {
            name: paired(nest.rebuild(iter(nest.leaves)), gradient.get(name)) for name, nest in self.nests.items()
        }
        return [leaves[name][place] for name, place in zip(self.names, self.places, strict=True)]


def _wanted(nest: Any) -> bool:
    return any(ops.differentiable(array, asked=False) for ops, array in arrays_in(nest))


def _nothing(function: str, inputs: Mapping[str, Any]) -> str:
    if not inputs:
        return f"{function}: no inputs were given, so there is nothing to take a gradient with respect to"
    return (
        f"{function}: no input requires a gradient; name some by wrt=, "
        f"or call requires_grad_() on them; given: {', '.join(inputs)}"
    )
