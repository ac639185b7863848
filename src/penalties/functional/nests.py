"""Nests of arrays: lists, tuples, mappings, iterables of parameters, and the pytrees that JAX knows."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, MappingView, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from ..backends import Backend, backend_of, no_array, owner, two_libraries
from ..errors import BackendError, ShapeError
from .options import check_same_shape

__all__ = ["Flat", "Leaves", "flatten", "gather"]

Rebuild: TypeAlias = Callable[[Iterator[Any]], Any]
"""Takes one new leaf for each old one, in order, and gives the nest's structure around them."""


class Leaves(NamedTuple):
    """The arrays of one call, ready to compute with: floats of at least 32 bits, packed where that is faster."""

    ops: Backend
    rows: Sequence[Sequence[Any]]
    """One row per leaf: the leaf of each argument."""
    rebuild: Rebuild | None
    """None where the arguments are single arrays."""

    @property
    def size(self) -> int:
        """Elements of one argument in all."""
        total = 0
        for row in self.rows:
            total += math.prod(row[0].shape)
        return total

    def reduce(self, value: Callable[..., Any], reduction: str) -> Any:
        """`value(*row, reduction)` over all leaves: added, averaged by elements, or in the structure of the nest."""
        rows = self.rows
        if reduction == "none":
            values = [value(*row, reduction) for row in rows]
            return values[0] if self.rebuild is None else self.rebuild(iter(values))
        if len(rows) == 1:
            return value(*rows[0], reduction)
        total = self.ops.add([value(*row, "sum") for row in rows])
        return total if reduction == "sum" else total / max(self.size, 1)


def gather(function: str, *, keep: bool, mask: Any = None, **arguments: Any) -> Leaves:
    """The leaves of one or more arguments of the same structure, with those of the mask, if there is one, last.

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

    nest = flatten(function, first, x)
    ops, columns = nest.ops, [nest.leaves]
    for name, other in others:
        paired = flatten(function, name, other)
        if paired.ops is not ops:
            raise two_libraries(function, first, ops, name, paired.ops)
        columns.append(_in_order_of(function, first, nest, name, paired))
    pack = len(nest.leaves) > 1 and not keep and ops.packs(nest.leaves)
    rows = zip(*[_ready(function, ops, column, pack) for column in columns], strict=True)
    return Leaves(ops, list(rows), nest.rebuild)


class Flat(NamedTuple):
    """A nest taken apart."""

    ops: Backend
    leaves: list[Any]
    rebuild: Rebuild
    places: list[str] | None
    """Where each leaf stands, as in `['a'][0]`; None for a plain sequence of arrays."""


def flatten(function: str, name: str, nest: Any) -> Flat:
    """The backend and the leaves of a nest in order, and what puts its structure back around as many new ones."""
    if isinstance(nest, list | tuple) and nest:
        # The common case, 64 short sequences of one type, without a call per leaf.
        leaves = cast("list[Any] | tuple[Any, ...]", nest)
        ops = owner(leaves[0])
        if ops is not None:
            kind = cast("Any", type(leaves[0]))
            for leaf in leaves:
                if type(leaf) is not kind:
                    break
            else:
                return Flat(ops, list(leaves), _maker(leaves), None)
    found: list[tuple[str, Backend, Any]] = []
    rebuild = _walk(function, name, nest, found)
    if not found:
        given = type(cast("object", nest)).__name__
        raise BackendError(f"{function}: {name} is a {given} without arrays; expected at least one array")
    first, ops, _ = found[0]
    for path, other, _ in found:
        if other is not ops:
            raise two_libraries(function, first, ops, path, other)
    return Flat(ops, [leaf for _, _, leaf in found], rebuild, [path.removeprefix(name) for path, _, _ in found])


def _walk(function: str, path: str, nest: Any, found: list[tuple[str, Backend, Any]]) -> Rebuild:
    ops = owner(nest)
    if ops is not None:
        found.append((path, ops, nest))
        return next
    if nest is None:
        return lambda new: None
    if hasattr(nest, "keys") and hasattr(nest, "__getitem__"):
        # By what a mapping does rather than by its class: torch.nn.ParameterDict is none.
        parts = {key: _walk(function, f"{path}[{key!r}]", nest[key], found) for key in nest}
        return lambda new: {key: part(new) for key, part in parts.items()}
    registered = _pytree(nest)
    if registered is not None:
        children, unflatten = registered
        rest = [_walk(function, f"{path}: leaf {index}", child, found) for index, child in enumerate(children)]
        return lambda new: unflatten([child(new) for child in rest])
    if isinstance(nest, Iterable) and not isinstance(nest, str | bytes):
        elements = [
            _walk(function, f"{path}[{index}]", element, found)
            for index, element in enumerate(cast("Iterable[Any]", nest))
        ]
        make = _maker(nest)
        return lambda new: make(element(new) for element in elements)
    raise no_array(function, path, nest)


def _maker(nest: Any) -> Callable[[Iterable[Any]], Any]:
    """What makes a sequence like `nest` of new elements; an iterator becomes a tuple."""
    if isinstance(nest, list):
        return list
    return getattr(cast("Any", type(nest)), "_make", tuple)


def _pytree(nest: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """The leaves of an instance of a class that is registered with JAX, and what rebuilds it; else None."""
    jax = sys.modules.get("jax")
    if jax is None or isinstance(nest, list | tuple | Iterator | MappingView):
        return None
    leaves, structure = jax.tree_util.tree_flatten(nest)
    if jax.tree_util.treedef_is_leaf(structure):
        return None
    return leaves, lambda new: jax.tree_util.tree_unflatten(structure, new)


def _in_order_of(function: str, first: str, a: Flat, second: str, b: Flat) -> list[Any]:
    """The leaves of `b` in the order of `a`: mappings pair by key, sequences by position."""
    leaves = b.leaves
    if a.places is not None or b.places is not None:
        places, others = a.places or _positions(a), b.places or _positions(b)
        if places != others:
            there = dict(zip(others, leaves, strict=True))
            for place in places:
                if place not in there:
                    raise ShapeError(f"{function}: {first} has an array at {place} and {second} has none there")
            for place in others:
                if place not in places:
                    raise ShapeError(f"{function}: {second} has an array at {place} and {first} has none there")
            leaves = [there[place] for place in places]
    elif len(a.leaves) != len(leaves):
        raise ShapeError(
            f"{function}: {first} has {len(a.leaves)} arrays and {second} has {len(leaves)}; expected as many"
        )
    for index, (one, other) in enumerate(zip(a.leaves, leaves, strict=True)):
        if one.shape != other.shape:
            place = (a.places or _positions(a))[index]
            check_same_shape(function, **{f"{first}{place}": one, f"{second}{place}": other})
    return leaves


def _positions(nest: Flat) -> list[str]:
    return [f"[{index}]" for index in range(len(nest.leaves))]


def _ready(function: str, ops: Backend, leaves: list[Any], pack: bool) -> list[Any]:
    if not pack:
        return [ops.upcast(function, leaf) for leaf in leaves]
    flat = ops.concatenate(leaves)
    ready = ops.upcast(function, flat)
    if ready is not flat and any(leaf.dtype != flat.dtype for leaf in leaves):
        # Mixed leaves became a small dtype together, as whole numbers and float16 do: widen each of them first.
        ready = ops.concatenate([ops.upcast(function, leaf) for leaf in leaves])
    return [ready]
