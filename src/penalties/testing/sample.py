"""A term with the inputs to try it on, and ways to change them."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from .. import trees
from ..backends import Backend, double_precision, owner
from ..errors import BackendError, InputError, OptionError
from ..functional.nests import Nest, flatten
from ..pipeline import Evaluation
from ..pipeline.evaluate import evaluate_term
from ..pipeline.inputs import lookup, prepared, reads
from ..pipeline.kinds import is_mapping
from ..pipeline.term import Term

__all__ = ["Numbers", "Sample", "Target", "number", "numbers"]

Numbers: TypeAlias = np.ndarray[Any, Any]

Target: TypeAlias = tuple[str, int]
"""The name of an input, and the index of an array in it."""


def numbers(ops: Backend, x: Any) -> Numbers:
    """An array of any library as a NumPy array."""
    return np.asarray(ops.read([x])[0])


@dataclass(frozen=True)
class Sample:
    """A term and the inputs that it reads, by name.

    The arrays are copies: whatever a term does to them, the author's are unchanged.
    """

    term: Term
    ops: Backend | None
    """The library of the arrays; None if there are none."""
    nests: Mapping[str, Nest]
    """The inputs that are arrays or nests of arrays."""
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
        found = {name: flat for name, value in read.items() if (flat := _flat(value)) is not None}
        libraries = [flat.ops for flat in found.values()]
        # A term on torch or JAX may also read a NumPy array, which is passed through.
        ops = next((ops for ops in libraries if ops.LIBRARY != "NumPy"), libraries[0] if libraries else None)
        nests = {name: flat for name, flat in found.items() if flat.ops is ops}
        rest = {name: value for name, value in read.items() if name not in nests}
        chosen = _chosen(ops, nests, tuple(read), wrt)
        return cls(term, ops, nests, rest, chosen).mapped(_copied, floating=False)

    @property
    def library(self) -> str:
        """The name of the library; NumPy if there are no arrays."""
        return "NumPy" if self.ops is None else self.ops.LIBRARY

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs as the term reads them."""
        return {**self.rest, **{name: flat.rebuild(iter(flat.leaves)) for name, flat in self.nests.items()}}

    @property
    def leaves(self) -> list[Any]:
        """All arrays, in order."""
        return [leaf for flat in self.nests.values() for leaf in flat.leaves]

    @property
    def positions(self) -> list[Target]:
        """The position of each of them."""
        return [(name, index) for name, flat in self.nests.items() for index in range(len(flat.leaves))]

    @property
    def floats(self) -> list[Target]:
        """The positions of arrays that can be differentiated."""
        return [
            target
            for target, leaf in zip(self.positions, self.leaves, strict=True)
            if self.nests[target[0]].ops.differentiable(leaf, requested=True)
        ]

    @property
    def targets(self) -> list[Target]:
        """The positions of arrays that gradients are taken with respect to."""
        return [target for target in self.floats if target[0] in self.wrt]

    def label(self, name: str, index: int) -> str:
        """The name of an array in messages."""
        return name + self.nests[name].paths[index]

    def filled(self, leaves: Iterable[Any]) -> "Sample":
        """The same with other arrays, in order."""
        rest = iter(leaves)
        return replace(
            self,
            nests={name: flat._replace(leaves=[next(rest) for _ in flat.leaves]) for name, flat in self.nests.items()},
        )

    def mapped(self, change: Callable[[Backend, Any], Any], *, floating: bool = True) -> "Sample":
        """The same with every array changed, or every floating one."""
        return self.filled(
            change(flat.ops, leaf) if not floating or flat.ops.differentiable(leaf, requested=True) else leaf
            for flat in self.nests.values()
            for leaf in flat.leaves
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

    def gradients(self, evaluation: Evaluation) -> dict[Target, Any]:
        """The gradient of an evaluation at each target; None if there is no path to it."""
        assert evaluation.gradient is not None, "callers check for one"
        found: dict[Target, Any] = {}
        for name in self.wrt:
            flat = self.nests[name]
            inside = trees.pair(flat.rebuild(flat.leaves), evaluation.gradient[name])
            found |= {(name, index): gradient for index, gradient in enumerate(inside)}
        return {target: found[target] for target in self.targets}

    def double(self) -> AbstractContextManager[Any]:
        """A context in which float64 is available; JAX has to enable it."""
        if self.library != "JAX":
            return contextlib.nullcontext()
        return double_precision(True)


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


def _flat(value: Any) -> Nest | None:
    """The arrays of an input; None if it holds anything else, or nothing."""
    try:
        return flatten("check_term", "input", value)
    except BackendError:
        return None


def _chosen(
    ops: Backend | None, nests: Mapping[str, Nest], names: Sequence[str], wrt: str | Sequence[str] | None
) -> tuple[str, ...]:
    floating = [
        name
        for name, flat in nests.items()
        if any(flat.ops.differentiable(leaf, requested=True) for leaf in flat.leaves)
    ]
    if wrt is None:
        wanted = [
            name
            for name in floating
            if any(nests[name].ops.differentiable(x, requested=False) for x in nests[name].leaves)
        ]
        return tuple(wanted or floating)
    chosen: dict[str, None] = {}
    for root in (wrt,) if isinstance(wrt, str) else wrt:
        inside = [name for name in names if reads(name, root)]
        if not inside:
            raise InputError(
                f'check_term: wrt names "{root}", which the term does not read; it reads {", ".join(names)}'
            )
        for name in inside:
            if name not in floating:
                raise OptionError(
                    "check_term", "wrt", name, f"inputs that hold arrays of floats: {', '.join(floating)}"
                )
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
