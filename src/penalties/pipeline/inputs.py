"""What a call is given, and how a term finds its part of it."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, MappingView
from typing import TYPE_CHECKING, Any

from ..backends import Backend, owner
from ..errors import InputError, did_you_mean
from .kinds import compiling, described, is_mapping, is_row
from .pytrees import known_to_jax

if TYPE_CHECKING:
    from .term import Term

__all__ = ["arrays_in", "check_unmapped", "lookup", "paired", "prepared", "reads", "surroundings"]


def prepared(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a call, with every iterator turned into a tuple once, so that each term can read it."""
    for value in inputs.values():
        if hasattr(value, "__next__"):
            return {key: tuple(given) if hasattr(given, "__next__") else given for key, given in inputs.items()}
    return inputs


def lookup(reader: str, inputs: Mapping[str, Any], name: str) -> Any:
    """The input of this name, or what a path such as `heads.policy.logits` leads to inside one.

    Keys may contain dots: at every level the longest key that fits is taken. `reader` is what asks, for the error.
    """
    if name in inputs:
        return inputs[name]
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        root = ".".join(parts[:depth])
        if root in inputs:
            return _follow(reader, name, root, inputs[root], parts[depth:])
    given = ", ".join(f'"{key}"' for key in inputs) if inputs else "none"
    raise InputError(f'{reader}: no input is named "{name}"; given: {given}{did_you_mean(name, inputs)}')


def _follow(reader: str, name: str, reached: str, nest: Any, parts: list[str]) -> Any:
    """What the rest of a path leads to, from the nest that it has reached."""
    while parts:
        found, used = _step(reader, name, reached, nest, parts)
        reached = ".".join([reached, *parts[:used]])
        nest, parts = found, parts[used:]
    return nest


def _step(reader: str, name: str, reached: str, nest: Any, parts: list[str]) -> tuple[Any, int]:
    """The part of a nest that a path goes on to, and how many words of the path name it."""
    part = parts[0]
    hint = ""
    if is_mapping(nest) or _has_keys(nest):
        for count in range(len(parts), 0, -1):
            key = ".".join(parts[:count])
            if key in nest:
                return nest[key], count
        keys = [str(key) for key in nest]
        inside = ", ".join(f'"{key}"' for key in keys) or "nothing"
        hint = did_you_mean(".".join(parts), keys) or did_you_mean(part, keys)
    elif is_row(nest) and part.isdigit():
        if int(part) < len(nest):
            return nest[int(part)], 1
        inside = f"{len(nest)} elements"
    else:
        if hasattr(nest, part):
            return getattr(nest, part), 1
        inside = described(nest)
    raise InputError(f'{reader}: the input "{name}" has no part "{part}"; {reached} holds {inside}{hint}')


def _has_keys(nest: Any) -> bool:
    """Whether it acts as a mapping: torch.nn.ParameterDict is not one by its class."""
    return hasattr(nest, "keys") and hasattr(nest, "__getitem__")


def check_unmapped(terms: Iterable["Term"], names: Collection[str]) -> None:
    """Raise where an input has the name of a parameter that an enabled term neither maps nor sets.

    Otherwise a mask that was passed and not mapped would be left out without a word.
    """
    for term in terms:
        for parameter in sorted(term.unmapped) if term.enabled else ():
            if parameter in names:
                mapped = ", ".join(f'"{key}": "{name}"' for key, name in [*term.inputs.items(), (parameter, parameter)])
                raise InputError(
                    f'{term.name}: the call has an input "{parameter}", but this term does not read it and would use '
                    f"the default of its parameter {parameter}; map it: inputs={{{mapped}}}, or set it: "
                    f'options={{"{parameter}": …}}, or rename the input'
                )


def reads(name: str, root: str) -> bool:
    """Whether an input of this name lies at or inside `root`."""
    return name == root or name.startswith(f"{root}.")


def arrays_in(nest: Any) -> Iterator[tuple[Backend, Any]]:
    """The arrays in a nest with their backends; what is no array is passed over."""
    ops = owner(nest)
    return _inside(nest) if ops is None else iter(((ops, nest),))


def _inside(nest: Any) -> Iterator[tuple[Backend, Any]]:
    if is_mapping(nest) or _has_keys(nest):
        for key in nest:
            yield from arrays_in(nest[key])
    elif is_row(nest) or _is_view(nest):
        for part in nest:
            yield from arrays_in(part)
    elif nest is not None and not isinstance(nest, str | bytes | int | float):
        for part in _pytree(nest):
            ops = owner(part)
            if ops is not None:
                yield ops, part


def _is_view(nest: Any) -> bool:
    """The values of a mapping, or a list of parameters: not any iterable, since that may be a data loader."""
    torch = sys.modules.get("torch")
    return isinstance(nest, MappingView) or (torch is not None and isinstance(nest, torch.nn.ParameterList))


def _pytree(nest: Any) -> list[Any]:
    """The leaves of an instance of a class that is registered with JAX; none of anything else."""
    jax = sys.modules.get("jax")
    if jax is None or compiling():
        return []
    leaves, structure = jax.tree_util.tree_flatten(nest)
    return [] if jax.tree_util.treedef_is_leaf(structure) else leaves


def surroundings(inputs: Mapping[str, Any]) -> tuple[bool, Backend | None, Any]:
    """Whether a compiler is looking, and the library and first array of the inputs, NumPy's last."""
    found: tuple[Backend | None, Any] = (None, None)
    for given in inputs.values():
        ops = owner(given)
        here = (ops, given) if ops is not None else next(arrays_in(given), None)
        if here is None:
            continue
        ops, like = here
        if ops.LIBRARY == "JAX":
            known_to_jax()
            return any(other.tracing(array) for other, array in arrays_in(list(inputs.values()))), ops, like
        if found[0] is None or ops.LIBRARY != "NumPy":
            found = here
        if ops.LIBRARY != "NumPy":
            break
    ops, like = found
    return compiling(), ops, like


def paired(nest: Any, other: Any) -> list[Any]:
    """For each array of the nest, in order, what stands in its place in another of the same structure.

    Mappings pair by key; a key that the other lacks, and None, are None for all below. Raises `ValueError` that says
    where the structures differ.
    """
    if other is None:
        return [None for _ in arrays_in(nest)]
    if owner(nest) is not None:
        return [other]
    if is_mapping(nest):
        if not is_mapping(other) or any(key not in nest for key in other):
            raise ValueError(f"expected a mapping with keys among {', '.join(map(repr, nest))}")
        return [leaf for key, part in nest.items() for leaf in paired(part, other.get(key))]
    if is_row(nest):
        if not is_row(other) or len(other) != len(nest):
            raise ValueError(f"expected a sequence of {len(nest)} parts")
        return [leaf for part, there in zip(nest, other, strict=True) for leaf in paired(part, there)]
    leaves, others = _pytree(nest), _pytree(other)
    if len(leaves) != len(others):
        raise ValueError(f"expected {described(nest)}")
    return [leaf for leaf, mine in zip(others, leaves, strict=True) if owner(mine) is not None]
