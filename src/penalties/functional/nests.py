"""Nests of arrays: lists, tuples, mappings, iterables of parameters, and the pytrees that JAX knows."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from ..backends import Backend, backend_of, owner
from ..errors import BackendError, ShapeError
from .options import check_same_shape

__all__ = ["Leaves", "flatten", "gather"]

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


def gather(function: str, *, keep: bool, **arguments: Any) -> Leaves:
    """The leaves of one or more arguments of the same structure; those that are None are left out.

    Small ragged leaves become one flat array, unless `keep` says that the structure is needed again.
    """
    given = {name: x for name, x in arguments.items() if x is not None}
    (first, x), *others = given.items() or arguments.items()
    if owner(x) is not None:
        ops = backend_of(function, **given)
        for name, other in others:
            check_same_shape(function, **{first: x, name: other})
        return Leaves(ops, [[ops.upcast(function, array) for array in given.values()]], None)

    ops, leaves, rebuild = flatten(function, first, x)
    columns = [leaves]
    for name, other in others:
        other_ops, column, _ = flatten(function, name, other)
        if other_ops is not ops:
            raise _two_libraries(function, first, ops, name, other_ops)
        _check_same_leaves(function, first, leaves, name, column)
        columns.append(column)
    pack = len(leaves) > 1 and not keep and ops.packs(leaves)
    rows = zip(*[_ready(function, ops, column, pack) for column in columns], strict=True)
    return Leaves(ops, list(rows), rebuild)


def flatten(function: str, name: str, nest: Any) -> tuple[Backend, list[Any], Rebuild]:
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
                return ops, list(leaves), _maker(leaves)
    found: list[tuple[str, Backend, Any]] = []
    rebuild = _walk(function, name, nest, found)
    if not found:
        kind = type(cast("object", nest)).__name__
        raise BackendError(f"{function}: {name} is a {kind} without arrays; expected at least one array")
    first, ops, _ = found[0]
    for path, other, _ in found:
        if other is not ops:
            raise _two_libraries(function, first, ops, path, other)
    return ops, [leaf for _, _, leaf in found], rebuild


def _walk(function: str, path: str, nest: Any, found: list[tuple[str, Backend, Any]]) -> Rebuild:
    ops = owner(nest)
    if ops is not None:
        found.append((path, ops, nest))
        return next
    if nest is None:
        return lambda new: None
    if isinstance(nest, Mapping):
        items = cast("Mapping[Any, Any]", nest)
        parts = {key: _walk(function, f"{path}[{key!r}]", value, found) for key, value in items.items()}
        return lambda new: {key: part(new) for key, part in parts.items()}
    registered = _pytree(nest)
    if registered is not None:
        children, unflatten = registered
        rest = [_walk(function, f"leaf {index} of {path}", child, found) for index, child in enumerate(children)]
        return lambda new: unflatten([child(new) for child in rest])
    if isinstance(nest, Iterable) and not isinstance(nest, str | bytes):
        elements = [
            _walk(function, f"{path}[{index}]", element, found)
            for index, element in enumerate(cast("Iterable[Any]", nest))
        ]
        make = _maker(nest)
        return lambda new: make(element(new) for element in elements)
    raise BackendError(
        f"{function}: {path} is a {type(nest).__name__}; expected a NumPy array, a torch.Tensor or a jax.Array"
    )


def _maker(nest: Any) -> Callable[[Iterable[Any]], Any]:
    """What makes a sequence like `nest` of new elements; an iterator becomes a tuple."""
    if isinstance(nest, list):
        return list
    return getattr(cast("Any", type(nest)), "_make", tuple)


def _pytree(nest: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """The leaves of an instance of a class that is registered with JAX, and what rebuilds it; else None."""
    jax = sys.modules.get("jax")
    if jax is None or isinstance(nest, list | tuple | Iterator):
        return None
    leaves, structure = jax.tree_util.tree_flatten(nest)
    if jax.tree_util.treedef_is_leaf(structure):
        return None
    return leaves, lambda new: jax.tree_util.tree_unflatten(structure, new)


def _ready(function: str, ops: Backend, leaves: list[Any], pack: bool) -> list[Any]:
    if not pack:
        return [ops.upcast(function, leaf) for leaf in leaves]
    dtype = leaves[0].dtype
    for leaf in leaves:
        if leaf.dtype != dtype:
            return [ops.concatenate([ops.upcast(function, leaf) for leaf in leaves])]
    return [ops.upcast(function, ops.concatenate(leaves))]


def _two_libraries(function: str, first: str, a: Backend, second: str, b: Backend) -> BackendError:
    return BackendError(
        f"{function}: {first} is a {a.LIBRARY} array and {second} is a {b.LIBRARY} array; "
        "expected one library in a call: convert one of them"
    )


def _check_same_leaves(function: str, first: str, a: list[Any], second: str, b: list[Any]) -> None:
    if len(a) != len(b):
        raise ShapeError(f"{function}: {first} has {len(a)} arrays and {second} has {len(b)}; expected as many")
    for index, (one, other) in enumerate(zip(a, b, strict=True)):
        if one.shape != other.shape:
            check_same_shape(function, **{f"{first}[{index}]": one, f"{second}[{index}]": other})
