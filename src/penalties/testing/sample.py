"""A term and its inputs, and ways to change them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from .. import trees
from ..backends import Backend, owner
from ..errors import BackendError, InputError, OptionError
from ..functional.nests import Nest, flatten
from ..pipeline import Evaluation
from ..pipeline.evaluate import evaluate_term
from ..pipeline.inputs import lookup, prepared, reads
from ..pipeline.kinds import is_mapping
from ..pipeline.term import Term

__all__ = ["Numbers", "Sample", "number", "numbers"]

Numbers: TypeAlias = np.ndarray[Any, Any]


def numbers(ops: Backend | None, x: Any) -> Numbers:
    """An array of any library as a NumPy array."""
    assert ops is not None, "there are arrays"
    return np.asarray(ops.read([x])[0])


@dataclass(frozen=True)
class Sample:
    """A term and the inputs that it reads, by name.

    The arrays are copies: whatever a term does to them, the author's are unchanged.
    """

    term: Term
    ops: Backend | None
    """The library of the arrays; None if there are none."""
    arrays: trees.Flat
    """The inputs that are arrays or nests of arrays, by name, as one nest."""
    rest: Mapping[str, Any]
    """All other inputs, passed through unchanged."""
    wrt: tuple[str, ...]
    """The inputs that gradients are taken with respect to."""
    state: Any = None
    """The state that the term is given."""

    @classmethod
    def of(cls, term: Term, inputs: Any, wrt: str | Sequence[str] | None) -> "Sample":
        """Find the inputs of the term; a missing name is an `InputError`."""
        given = _by_name(term, inputs)
        read = {name: lookup(term.name, given, name) for name in term.inputs.values()}
        nests = {name: nest for name, value in read.items() if (nest := _nest(value)) is not None}
        libraries = [nest.ops for nest in nests.values()]
        # A term on torch or JAX may also read a NumPy array, which is passed through.
        ops = next((ops for ops in libraries if ops.LIBRARY != "NumPy"), libraries[0] if libraries else None)
        nests = {name: nest for name, nest in nests.items() if nest.ops is ops}
        arrays = trees.flatten({name: nest.rebuild(iter(nest.leaves)) for name, nest in nests.items()})
        rest = {name: value for name, value in read.items() if name not in nests}
        return cls(term, ops, arrays, rest, _chosen(nests, tuple(read), wrt)).mapped(_copied, floating=False)

    @property
    def library(self) -> str:
        """The name of the library; NumPy if there are no arrays."""
        return "NumPy" if self.ops is None else self.ops.LIBRARY

    @property
    def named(self) -> dict[str, Any]:
        """The inputs that are arrays or nests of arrays."""
        return self.arrays.rebuild(self.leaves)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs as the term reads them."""
        return {**self.rest, **self.named}

    @property
    def leaves(self) -> list[Any]:
        """All arrays, in order; elsewhere each is known by its index."""
        return self.arrays.leaves

    @property
    def names(self) -> list[str]:
        """The name of the input that each array is in."""
        return [name for name, value in self.named.items() for _ in trees.arrays(value)]

    @property
    def floats(self) -> list[int]:
        """The arrays that can be differentiated."""
        ops = self.ops
        return [i for i, leaf in enumerate(self.leaves) if ops is not None and ops.differentiable(leaf, requested=True)]

    @property
    def targets(self) -> list[int]:
        """The arrays that gradients are taken with respect to."""
        names = self.names
        return [i for i in self.floats if names[i] in self.wrt]

    def label(self, index: int) -> str:
        """The name of an array in messages."""
        name = self.names[index]
        return name + self.arrays.paths[index].removeprefix(f"[{name!r}]")

    def filled(self, leaves: Iterable[Any]) -> "Sample":
        """The same with other arrays, in order."""
        return replace(self, arrays=trees.Flat(list(leaves), self.arrays.structure))

    def mapped(self, change: Callable[[Backend, Any], Any], *, floating: bool = True) -> "Sample":
        """The same with every array changed, or every floating one."""
        chosen = self.floats if floating else range(len(self.leaves))
        return self.filled(
            change(self.ops, leaf) if self.ops is not None and i in chosen else leaf
            for i, leaf in enumerate(self.leaves)
        )

    def cast(self, dtype: str) -> "Sample":
        """The same with the floating arrays in this dtype."""
        return self.mapped(lambda ops, leaf: _cast(ops, leaf, dtype))

    def after(self, calls: int) -> "Sample":
        """The same with the state that this many calls leave, each given the state of the one before."""
        state: Any = None
        for _ in range(calls):
            state = self.evaluate(state=state).state
        return replace(self, state=state)

    def evaluate(self, *, gradient: bool = False, state: Any = None) -> Evaluation:
        """The term on these inputs. A term that needs the training step gets 0."""
        step = 0 if self.term.needs_step else None
        # Overflow is reported by the checks; NumPy alone would warn as well.
        with np.errstate(all="ignore"):
            state = self.state if state is None else state
            return evaluate_term(self.term, self.inputs, self.wrt if gradient else (), step=step, state=state)

    def value(self, state: Any = None) -> float:
        """The value as a number."""
        return number(self.evaluate(state=state))

    def gradients(self, evaluation: Evaluation) -> dict[int, Any]:
        """The gradient of an evaluation at each target; None if there is no path to it."""
        assert evaluation.gradient is not None, "callers check for one"
        found = trees.pair(self.named, evaluation.gradient)
        return {i: found[i] for i in self.targets}


def number(evaluation: Evaluation) -> float:
    """The value of an evaluation as a number."""
    ops = owner(evaluation.value)
    assert ops is not None, "a value is an array"
    return float(ops.read([evaluation.value])[0])


def _by_name(term: Term, inputs: Any) -> Mapping[str, Any]:
    if is_mapping(inputs):
        return prepared(dict(inputs))
    if len(term.inputs) != 1:
        wanted = ", ".join(term.inputs.values()) or "no input"
        raise InputError(f"check_term: {term.name} needs {wanted}; pass a mapping from these names to inputs")
    return prepared(dict.fromkeys(term.inputs.values(), inputs))


def _nest(value: Any) -> Nest | None:
    """The arrays of an input; None if it holds anything else, or nothing."""
    try:
        return flatten("check_term", "input", value)
    except BackendError:
        return None


def _chosen(nests: Mapping[str, Nest], names: Sequence[str], wrt: str | Sequence[str] | None) -> tuple[str, ...]:
    """The inputs that gradients are taken with respect to."""

    def some(requested: bool) -> list[str]:
        return [
            name
            for name, nest in nests.items()
            if any(nest.ops.differentiable(leaf, requested=requested) for leaf in nest.leaves)
        ]

    floating = some(requested=True)
    if wrt is None:
        return tuple([name for name in some(requested=False) if name in floating] or floating)
    chosen: dict[str, None] = {}
    for root in (wrt,) if isinstance(wrt, str) else wrt:
        inside = [name for name in names if reads(name, root)]
        if not inside:
            raise InputError(
                f'check_term: wrt names "{root}", which the term does not read; it reads {", ".join(names)}'
            )
        for name in inside:
            if name not in floating:
                expected = f"inputs that hold arrays of floats: {', '.join(floating)}"
                raise OptionError("check_term", "wrt", name, expected)
            chosen[name] = None
    return tuple(chosen)


def _copied(ops: Backend, leaf: Any) -> Any:
    if ops.LIBRARY == "PyTorch":
        return leaf.detach().clone()
    return leaf.copy() if ops.LIBRARY == "NumPy" else leaf


def _cast(ops: Backend, leaf: Any, dtype: str) -> Any:
    if ops.LIBRARY == "PyTorch":
        import torch

        return leaf.to(getattr(torch, dtype))
    return leaf.astype(dtype)
