"""The inputs of a call, and how a term finds those that it reads."""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .. import trees
from ..arrays import Logits
from ..backends import Backend, owner
from ..errors import InputError, did_you_mean
from .binding import CALL_ARGUMENTS
from .kinds import compiling, described, is_mapping, is_row
from .output.pytrees import register_with_jax

if TYPE_CHECKING:
    from .term import Term

__all__ = [
    "INPUT",
    "CallInputs",
    "check_spelling",
    "check_unmapped",
    "lookup",
    "prepared",
    "reads",
    "surroundings",
]

INPUT: Final = "input"
"""The name of a single positional input."""


class CallInputs(NamedTuple):
    """The inputs of one call: several by name, or a single one that every term reads under its own name for it."""

    named: Mapping[str, Any]
    alone: bool
    """Whether there is one positional input, under the name `INPUT`."""
    traced: bool
    """Whether a compiler traces the call: then nothing is measured, read or announced."""
    transformed: bool
    """Whether a compiler does, or a transform such as `vmap`: then values must not be looked at."""
    ops: Backend | None
    """The library of the first array, NumPy's last; None without arrays."""
    like: Any
    """That array."""
    whole: dict[int, Any]
    """`Logits` that a term needed as an array, by their id, with that array; all terms of a call share it."""

    @classmethod
    def of(cls, named: Mapping[str, Any], *, alone: bool = False) -> "CallInputs":
        """The inputs as they were passed to a call."""
        return cls(named, alone, *surroundings(named), {})

    def materialized(self, logits: Logits) -> Any:
        """These logits as an array, computed once."""
        key = id(logits)
        if key not in self.whole:
            # With the logits: the id of some that are gone, as a property's, may be that of others.
            self.whole[key] = logits, logits.materialize()
        return self.whole[key][1]

    def find(self, reader: str, name: str) -> Any:
        """The input of this name; `reader` is the term or function that reads it, for the error."""
        return self.named[INPUT] if self.alone else lookup(reader, self.named, name)

    def lies_in(self, name: str, root: str) -> bool:
        """Whether the input of this name is `root`, or is inside it; a name with a dot may be an input itself."""
        return self.same(name, root) or (name not in self.named and reads(name, root))

    def same(self, name: str, target: str) -> bool:
        """Whether both names mean the same input."""
        return self.alone or name == target

    def replaced(self, changes: Mapping[str, Any]) -> "CallInputs":
        """The same with other values for some names."""
        return CallInputs({**self.named, **changes}, self.alone, self.traced, self.transformed, self.ops, self.like, {})


def prepared(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a call, with every iterator turned into a tuple once, so that each term can read it."""
    for value in inputs.values():
        if hasattr(value, "__next__"):
            return {key: tuple(given) if hasattr(given, "__next__") else given for key, given in inputs.items()}
    return inputs


def lookup(reader: str, inputs: Mapping[str, Any], name: str) -> Any:
    """The input of this name, or what a path such as `heads.policy.logits` leads to inside one.

    Keys may contain dots: at every level the longest key that fits is taken.
    """
    if name in inputs:
        return inputs[name]
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        root = ".".join(parts[:depth])
        if root in inputs:
            return _follow(reader, name, root, inputs[root], parts[depth:])
    given = ", ".join(f'"{key}"' for key in inputs) if inputs else "none"
    near = did_you_mean(name, inputs) or did_you_mean(parts[0], inputs)
    raise InputError(f'{reader}: no input is named "{name}"; given: {given}{near}')


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
        hint = did_you_mean(part, [attribute for attribute in dir(nest) if not attribute.startswith("_")])
    raise InputError(f'{reader}: the input "{name}" has no part "{part}"; {reached} holds {inside}{hint}')


def _has_keys(nest: Any) -> bool:
    """Whether it acts as a mapping: torch.nn.ParameterDict is not one by its class."""
    return hasattr(nest, "keys") and hasattr(nest, "__getitem__")


def check_unmapped(terms: Iterable["Term"], names: Collection[str]) -> None:
    """Raise where an input has the name of a parameter that an enabled term neither maps nor sets.

    Otherwise a mask that was passed but not mapped would silently be ignored.
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


def check_spelling(name: str, given: Any) -> None:
    """Raise where an input that no term reads is almost an argument of the call: `acumulate=True` would do nothing.

    An array is an input, whatever its name.
    """
    if next(trees.arrays(given), None) is None and (near := did_you_mean(name, CALL_ARGUMENTS, cutoff=0.8)):
        raise InputError(f'no term reads the input "{name}", and the call has no such argument{near}')


def reads(name: str, root: str) -> bool:
    """Whether an input of this name is `root`, or is inside it."""
    return name == root or name.startswith(f"{root}.")


def surroundings(inputs: Mapping[str, Any]) -> tuple[bool, bool, Backend | None, Any]:
    """Whether a compiler, or that or a transform, traces the call; the library and first array, NumPy's last."""
    found: tuple[Backend | None, Any] = (None, None)
    for given in inputs.values():
        like = given if owner(given) is not None else next(trees.arrays(given), None)
        ops = owner(like)
        if ops is None:
            continue
        if ops.LIBRARY == "JAX":
            register_with_jax()
            traced = any(ops.tracing(array) for array in trees.arrays(list(inputs.values())))
            return traced, traced, ops, like
        if found[0] is None or ops.LIBRARY != "NumPy":
            found = (ops, like)
        if ops.LIBRARY != "NumPy":
            break
    ops, like = found
    traced = compiling()
    return traced, traced or (ops is not None and ops.tracing(like)), ops, like
