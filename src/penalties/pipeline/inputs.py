"""What a call is given, and how a term finds its part of it."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ..backends import Backend, owner
from ..errors import InputError
from .kinds import is_mapping, is_row

__all__ = ["arrays_in", "lookup", "prepared", "reads"]


def prepared(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a call, with every iterator turned into a tuple once, so that each term can read it."""
    for value in inputs.values():
        if hasattr(value, "__next__"):
            return {key: tuple(given) if hasattr(given, "__next__") else given for key, given in inputs.items()}
    return inputs


def lookup(term: str, inputs: Mapping[str, Any], name: str) -> Any:
    """The input of this name, or what a path as `heads.policy.logits` leads to inside one."""
    if name in inputs:
        return inputs[name]
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        root = ".".join(parts[:depth])
        if root in inputs:
            found = inputs[root]
            for part in parts[depth:]:
                found = _step(term, name, root, found, part)
                root = f"{root}.{part}"
            return found
    given = ", ".join(f'"{key}"' for key in inputs) if inputs else "none"
    raise InputError(f'{term}: no input is named "{name}"; given: {given}')


def _step(term: str, name: str, reached: str, nest: Any, part: str) -> Any:
    if is_mapping(nest):
        if part in nest:
            return nest[part]
        inside = ", ".join(f'"{key}"' for key in nest) or "nothing"
    elif is_row(nest) and part.isdigit():
        if int(part) < len(nest):
            return nest[int(part)]
        inside = f"{len(nest)} elements"
    else:
        if hasattr(nest, part):
            return getattr(nest, part)
        inside = f"a {type(nest).__name__}"
    raise InputError(f'{term}: the input "{name}" has no part "{part}"; {reached} holds {inside}')


def reads(name: str, root: str) -> bool:
    """Whether an input of this name lies at or inside `root`."""
    return name == root or name.startswith(f"{root}.")


def arrays_in(nest: Any) -> Iterator[tuple[Backend, Any]]:
    """The arrays in a nest with their backends; what is no array is passed over."""
    ops = owner(nest)
    if ops is not None:
        yield ops, nest
    elif is_mapping(nest):
        for part in nest.values():
            yield from arrays_in(part)
    elif is_row(nest):
        for part in nest:
            yield from arrays_in(part)
    elif nest is not None and not isinstance(nest, str | bytes | int | float):
        jax = sys.modules.get("jax")
        for part in jax.tree_util.tree_leaves(nest) if jax is not None else ():
            ops = owner(part)
            if ops is not None:
                yield ops, part
