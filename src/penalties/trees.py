"""Nests of arrays: the one module that walks them.

A nest is a list, tuple, NamedTuple or mapping of arrays and nests, `Logits`, `dict.values()`, a
`torch.nn.ParameterList` or `ParameterDict`, a `keras.Variable`, which holds one array, or, where JAX is loaded, an
instance of any class that is registered as a pytree. Mappings are known by what they do (`keys` and `[]`) and come back
as dicts. Other iterables are not nests: one may be a data loader.
"""

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, MappingView, Sequence
from typing import Any, NamedTuple, cast

from .arrays import Logits, is_array, logits_of

__all__ = ["Flat", "arrays", "flatten", "logits", "map_arrays", "map_logits", "named", "pair"]


class Flat(NamedTuple):
    """A nest taken apart."""

    leaves: list[Any]
    """Its arrays, in order."""
    structure: Any
    """Everything else; None where the nest is an array itself."""

    def rebuild(self, leaves: Iterable[Any]) -> Any:
        """The same nest around as many new leaves, in order; a generator becomes a tuple."""
        return _rebuilt(self.structure, iter(leaves))

    @property
    def paths(self) -> list[str]:
        """Where each leaf is, as in `['a'][0]`."""
        return ["".join(f"[{key!r}]" for key in keys) for keys in _keys(self.structure)]


def flatten(nest: Any, *, reject: Callable[[str, Any], Exception] | None = None, materialize: bool = False) -> Flat:
    """The arrays of a nest in order, and what puts its structure back around new ones.

    Anything else stays where it is. With `reject` it is an error, which `reject(path, thing)` makes, except for None;
    any other iterable, such as a generator of parameters, is then taken for a nest too. With `materialize`, `Logits` in
    it are the arrays that they stand for, instead of nests.

    >>> import numpy as np
    >>> flat = flatten({"a": [np.ones(2), np.zeros(1)], "b": None})
    >>> flat.paths, flat.rebuild("xy")
    (["['a'][0]", "['a'][1]"], {'a': ['x', 'y'], 'b': None})
    """
    leaves: list[Any] = []
    return Flat(leaves, _taken_apart(nest, "", leaves, reject, materialize))


def arrays(nest: Any) -> Iterator[Any]:
    """The arrays in a nest, in order; anything else is passed over.

    >>> import numpy as np
    >>> [x.shape for x in arrays({"a": [np.ones(2), 3.0], "b": "text"})]
    [(2,)]
    """
    if is_array(nest):
        yield nest
        return
    opened = _open(nest)
    if opened is not None:
        for part in opened.parts:
            yield from arrays(part)


def named(nest: Any, is_leaf: Callable[[Any], bool] = is_array) -> Iterator[tuple[str, Any]]:
    """The arrays in a nest by their keys, fields and indices; `is_leaf` sees every part, and may keep others whole.

    >>> import numpy as np
    >>> [name for name, _ in named({"a": [np.ones(2), 3.0], "b": {"w": np.ones(1)}})]
    ['a.0', 'b.w']
    """
    return _named(nest, is_leaf, ())


def map_arrays(fn: Callable[[Any], Any], nest: Any) -> Any:
    """The nest with `fn(array)` in place of each array; anything else stays as it is.

    >>> import numpy as np
    >>> map_arrays(lambda x: x.sum().item(), {"a": (np.ones(2), "text")})
    {'a': (2.0, 'text')}
    """
    if is_array(nest):
        return fn(nest)
    opened = _open(nest)
    return nest if opened is None else opened.make([map_arrays(fn, part) for part in opened.parts])


def logits(nest: Any) -> Iterator[Logits]:
    """The `Logits` in a nest, in order."""
    if isinstance(nest, Logits):
        yield nest
        return
    opened = None if is_array(nest) else _open(nest)
    if opened is not None:
        for part in opened.parts:
            # Here rather than one call deeper: most nests are long lists of arrays.
            if not is_array(part):
                yield from logits(part)


def map_logits(fn: Callable[[Logits], Any], nest: Any) -> Any:
    """The nest with `fn(logits)` in place of each `Logits`; the nest itself where it has none."""
    if is_array(nest):
        return nest
    if isinstance(nest, Logits):
        return fn(nest)
    opened = _open(nest)
    if opened is None:
        return nest
    parts = [map_logits(fn, part) for part in opened.parts]
    same = all([new is part for new, part in zip(parts, opened.parts, strict=True)])  # noqa: C419 (torch.compile)
    return nest if same else opened.make(parts)


def pair(nest: Any, other: Any) -> list[Any]:
    """For each array of `nest`, in order, what is at the same path in `other`.

    Mappings are paired by key. Where `other` has None, or lacks a key, every array below is paired with None. Raises
    `ValueError` that says where the structures differ.

    >>> import numpy as np
    >>> pair({"a": np.ones(1), "b": [np.ones(1), np.ones(1)]}, {"b": [1, 2]})
    [None, 1, 2]
    """
    found: list[Any] = []
    _pair(nest, other, "", found)
    return found


class _Opened(NamedTuple):
    """One level of a nest."""

    keys: Sequence[Any] | None
    """The keys of a mapping; None for anything that goes by position."""
    parts: Sequence[Any]
    make: Callable[[Sequence[Any]], Any]
    """Makes such a level of new parts."""

    def path(self, index: int) -> str:
        return f"[{index if self.keys is None else self.keys[index]!r}]"


class _Constant(NamedTuple):
    """Something in a nest that is neither an array nor a nest."""

    value: Any


def _open(nest: Any) -> _Opened | None:
    """One level of a nest, or None for anything else."""
    if isinstance(nest, list):
        return _Opened(None, cast("list[Any]", nest), list)
    if isinstance(nest, tuple):
        # A NamedTuple is made from a sequence by its _make, which is public in spite of its name.
        parts = cast("tuple[Any, ...]", nest)
        return _Opened(None, parts, getattr(type(parts), "_make", tuple))
    if nest is None or isinstance(nest, str | bytes | int | float | Iterator):
        return None
    if isinstance(nest, Logits):
        parts = (nest.hidden, nest.weight, nest.bias)
        return _Opened(("hidden", "weight", "bias"), parts, functools.partial(logits_of, softcap=nest.softcap))
    if hasattr(nest, "keys") and hasattr(nest, "__getitem__"):
        # By what a mapping does rather than by its class: torch.nn.ParameterDict is not a Mapping.
        keys = list(nest.keys())

        def mapped(new: Sequence[Any]) -> dict[Any, Any]:
            return dict(zip(keys, new, strict=True))

        return _Opened(keys, [nest[key] for key in keys], mapped)
    torch = sys.modules.get("torch")
    if isinstance(nest, MappingView) or (torch is not None and isinstance(nest, torch.nn.ParameterList)):
        return _Opened(None, tuple(cast("Iterable[Any]", nest)), tuple)
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(nest, getattr(keras, "Variable", ())):
        return _Opened(None, (nest.value,), operator.itemgetter(0))
    jax = sys.modules.get("jax")
    if jax is None or (torch is not None and torch.compiler.is_compiling()):
        return None
    # None as a leaf: a gradient may have it where the nest has an array.
    leaves, structure = jax.tree_util.tree_flatten(nest, is_leaf=_is_leaf)
    if jax.tree_util.treedef_is_leaf(structure):
        return None
    return _Opened(None, leaves, functools.partial(jax.tree_util.tree_unflatten, structure))


def _named(nest: Any, is_leaf: Callable[[Any], bool], above: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    if is_leaf(nest) or is_array(nest):
        yield ".".join(map(str, above)), nest
        return
    opened = _open(nest)
    if opened is None:
        return
    keras, jax = sys.modules.get("keras"), sys.modules.get("jax")
    if opened.keys is not None:
        parts = [((key,), part) for key, part in zip(opened.keys, opened.parts, strict=True)]
    elif isinstance(nest, tuple) and hasattr(cast("object", nest), "_fields"):
        parts = [((key,), part) for key, part in zip(cast("Any", nest)._fields, opened.parts, strict=True)]
    elif keras is not None and isinstance(nest, getattr(keras, "Variable", ())):
        parts = [((), part) for part in opened.parts]
    elif jax is None or jax.tree_util.all_leaves([nest]) or isinstance(nest, list | tuple):
        parts = [((key,), part) for key, part in enumerate(opened.parts)]
    else:

        def stops(part: Any) -> bool:
            return is_leaf(part) or _is_leaf(part)

        found = jax.tree_util.tree_flatten_with_path(nest, is_leaf=stops)[0]
        parts = [(tuple(map(_key, path)), part) for path, part in found]
    for keys, part in parts:
        yield from _named(part, is_leaf, (*above, *keys))


def _key(entry: Any) -> Any:
    """The field, index or key that an entry of a path of JAX stands for."""
    return next(getattr(entry, kind) for kind in ("name", "idx", "key") if hasattr(entry, kind))


def _is_leaf(part: object) -> bool:
    return part is None or isinstance(part, Logits)


def _taken_apart(
    nest: Any, path: str, leaves: list[Any], reject: Callable[[str, Any], Exception] | None, materialize: bool
) -> Any:
    """The structure of a nest: None stands for an array; anything else is a level of structures or a constant."""
    if materialize and isinstance(nest, Logits):
        nest = nest.materialize()
    if is_array(nest):
        leaves.append(nest)
        return None
    opened = _open(nest)
    if opened is None and reject is not None and nest is not None:
        if not isinstance(nest, Iterable) or isinstance(nest, str | bytes):
            raise reject(path, nest)
        opened = _Opened(None, tuple(cast("Iterable[Any]", nest)), tuple)
    if opened is None:
        return _Constant(nest)
    parts: list[Any] = []
    for index, part in enumerate(opened.parts):
        if is_array(part):
            # As in `logits`.
            leaves.append(part)
            parts.append(None)
        else:
            parts.append(_taken_apart(part, path + opened.path(index), leaves, reject, materialize))
    return opened._replace(parts=parts)


def _rebuilt(structure: Any, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return next(leaves)
    if isinstance(structure, _Constant):
        return structure.value
    return structure.make([next(leaves) if part is None else _rebuilt(part, leaves) for part in structure.parts])


def _keys(structure: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys and indices that lead to each leaf."""
    if structure is None:
        yield above
    elif isinstance(structure, _Opened):
        for key, part in zip(structure.keys or range(len(structure.parts)), structure.parts, strict=True):
            yield from _keys(part, (*above, key))


def _pair(nest: Any, other: Any, path: str, found: list[Any]) -> None:
    if is_array(nest):
        found.append(other)
        return
    opened = _open(nest)
    if opened is None:
        return
    for index, (part, there) in enumerate(zip(opened.parts, _counterparts(opened, other, path), strict=True)):
        _pair(part, there, path + opened.path(index), found)


def _counterparts(opened: _Opened, other: Any, path: str) -> Sequence[Any]:
    """What `other` has for each part of one level."""
    if other is None:
        return [None] * len(opened.parts)
    where = f"at {path}: " if path else ""
    there = None if is_array(other) else _open(other)
    if opened.keys is not None:
        if there is None or there.keys is None or any(key not in opened.keys for key in there.keys):
            raise ValueError(f"{where}expected a mapping with keys among {', '.join(map(repr, opened.keys))}")
        others = dict(zip(there.keys, there.parts, strict=True))
        return [others.get(key) for key in opened.keys]
    if there is None or there.keys is not None or len(there.parts) != len(opened.parts):
        raise ValueError(f"{where}expected a sequence of {len(opened.parts)} parts")
    return there.parts
