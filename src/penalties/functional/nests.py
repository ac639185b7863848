"""Nests of arrays: lists, tuples, mappings, iterables of parameters, and the pytrees that JAX knows."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

from .. import trees
from ..backends import Backend, backend_of, no_array, owner, two_libraries
from ..errors import BackendError, ShapeError
from ..trees import Flat
from .options import check_same_shape

__all__ = ["Leaves", "Nest", "flatten", "gather"]


class Leaves(NamedTuple):
    """The arrays of one call, ready to compute with: floats of at least 32 bits, packed where that is faster."""

    ops: Backend
    rows: Sequence[Sequence[Any]]
    """One row per leaf: the leaf of each argument."""
    rebuild: Callable[[Iterable[Any]], Any] | None
    """None where the arguments are single arrays."""

    @property
    def size(self) -> int:
        """The total number of elements of one argument."""
        total = 0
        for row in self.rows:
            total += math.prod(row[0].shape)
        return total

    def reduce(self, value: Callable[..., Any], reduction: str) -> Any:
        """`value(*row, reduction)` over all leaves: added, averaged by elements, or in the structure of the nest."""
        rows = self.rows
        if reduction == "none":
            values = [value(*row, reduction) for row in rows]
            return values[0] if self.rebuild is None else self.rebuild(values)
        if len(rows) == 1:
            return value(*rows[0], reduction)
        total = self.ops.add([value(*row, "sum") for row in rows])
        return total if reduction == "sum" else total / max(self.size, 1)


def gather(function: str, *, keep: bool, mask: Any = None, **arguments: Any) -> Leaves:
    """The leaves of one or more arguments of one structure; those of the mask come last, if there is one.

    Small ragged leaves become one flat array, unless `keep` says that the structure is needed again.
    """
    if mask is not None:
        arguments["mask"] = mask
    (first, x), *others = arguments.items()
    if owner(x) is not None:
        ops = backend_of(function, **arguments)
        for name, other in others:
            check_same_shape(function, **{first: x, name: other})
        return Leaves(ops, [[ops.upcast(function, array) for array in arguments.values()]], None)

    nest = flatten(function, first, x, materialize=True)
    ops, columns = nest.ops, [nest.leaves]
    for name, other in others:
        paired = flatten(function, name, other, materialize=True)
        if paired.ops is not ops:
            raise two_libraries(function, first, ops, name, paired.ops)
        columns.append(_in_order_of(function, first, nest, name, paired))
    pack = len(nest.leaves) > 1 and not keep and ops.packs(nest.leaves)
    rows = zip(*[_ready(function, ops, column, pack) for column in columns], strict=True)
    return Leaves(ops, list(rows), nest.rebuild)


class Nest(NamedTuple):
    """A nest of arrays of one library, taken apart; a single array is one too."""

    ops: Backend
    leaves: list[Any]
    structure: Any
    """Everything but the leaves; None for a single array."""

    @property
    def paths(self) -> list[str]:
        """Where each leaf is, as in `['a'][0]`; an empty string for a single array."""
        return Flat(self.leaves, self.structure).paths

    def rebuild(self, leaves: Iterable[Any]) -> Any:
        """The same nest around as many new leaves."""
        return Flat(self.leaves, self.structure).rebuild(leaves)


def flatten(function: str, name: str, nest: Any, *, materialize: bool = False) -> Nest:
    """Take a nest apart; raises `BackendError` where a leaf is not an array, or where libraries mix.

    With `materialize`, `Logits` in it are the arrays that they stand for.
    """
    flat = trees.flatten(
        nest, reject=lambda path, thing: no_array(function, name + path, thing), materialize=materialize
    )
    if not flat.leaves:
        given = type(cast("object", nest)).__name__
        raise BackendError(f"{function}: {name} is a {given} without arrays; expected at least one array")
    ops = owner(flat.leaves[0])
    assert ops is not None
    for index, leaf in enumerate(flat.leaves):
        other = owner(leaf)
        if other is not None and other is not ops:
            raise two_libraries(function, name + flat.paths[0], ops, name + flat.paths[index], other)
    return Nest(ops, flat.leaves, flat.structure)


def _in_order_of(function: str, first: str, a: Nest, second: str, b: Nest) -> list[Any]:
    """The leaves of `b` in the order of `a`: mappings pair by key, sequences by position."""
    paths, there = a.paths, dict(zip(b.paths, b.leaves, strict=True))
    for path in paths:
        if path not in there:
            raise ShapeError(f"{function}: {first} has an array at {path} and {second} has none there")
    if len(there) > len(paths):
        path = next(path for path in there if path not in paths)
        raise ShapeError(f"{function}: {second} has an array at {path} and {first} has none there")
    for path, leaf in zip(paths, a.leaves, strict=True):
        if leaf.shape != there[path].shape:
            check_same_shape(function, **{f"{first}{path}": leaf, f"{second}{path}": there[path]})
    return [there[path] for path in paths]


def _ready(function: str, ops: Backend, leaves: list[Any], pack: bool) -> list[Any]:
    if not pack:
        return [ops.upcast(function, leaf) for leaf in leaves]
    flat = ops.concatenate(leaves)
    ready = ops.upcast(function, flat)
    if ready is not flat and any(leaf.dtype != flat.dtype for leaf in leaves):
        # Mixed leaves became a small dtype together, as whole numbers and float16 do: widen each of them first.
        ready = ops.concatenate([ops.upcast(function, leaf) for leaf in leaves])
    return [ready]
