"""Parameters of a model, by pattern: what a term over parameters reads."""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from ..errors import GradientError, InputError, OptionError, did_you_mean
from ..functional.options import is_whole
from ..pipeline.table import table
from .matching import Pattern, Patterns, as_patterns, matches, no_match
from .parameters import Parameter, parameters

__all__ = ["Selection", "select"]

_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class Selection(Mapping[str, Any]):
    """Parameters by name: what `select` returns, and an input of terms."""

    def __init__(self, chosen: Mapping[str, Parameter], among: Sequence[Parameter], frozen: int) -> None:
        """Keep what was chosen, and for the table what it was chosen among."""
        self._chosen = dict(chosen)
        self._among = among
        self._frozen = frozen

    def __getitem__(self, name: str) -> Any:
        """A parameter, as the model has it now."""
        if name not in self._chosen:
            hint = did_you_mean(name, self._chosen)
            raise InputError(f'the selection has no parameter "{name}"; it has {len(self._chosen)}{hint}')
        return self._chosen[name].read()

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of the model; raises where all of them were frozen since."""
        if not any(getattr(self[name], "requires_grad", True) for name in self._chosen):
            raise GradientError(
                f"all {len(self._chosen)} parameters of the selection were frozen after it was made, so a term over "
                "them trains nothing; select again after the model is wrapped, for example by peft, or frozen"
            )
        return iter(self._distinct())

    def __len__(self) -> int:
        """How many parameters."""
        return len(self._distinct())

    def _distinct(self) -> list[str]:
        """The names, without those of weights that were tied since to one of an earlier name."""
        names: dict[Any, str] = {}
        for name in self._chosen:
            parameter = self[name]
            # Arrays of JAX never change, so equal ones are not tied.
            names.setdefault(id(parameter) if hasattr(parameter, "requires_grad") else name, name)
        return list(names.values())

    def __repr__(self) -> str:
        """A table of what is covered."""
        names: dict[Any, list[str]] = {}
        sizes: dict[Any, int] = {}
        for parameter in self._among:
            names.setdefault(parameter.tie, []).append(parameter.name)
            sizes[parameter.tie] = math.prod(parameter.read().shape)
        lines: list[list[str]] = []
        for name, parameter in self._chosen.items():
            others = [other for other in names[parameter.tie] if other != name]
            array = parameter.read()
            owner = "" if parameter.owner is None else type(parameter.owner).__name__
            remark = f"also {', '.join(others)}" if others else ""
            lines.append([name, str(tuple(array.shape)), f"{math.prod(array.shape):,}", owner, remark])
        covered = sum(sizes[parameter.tie] for parameter in self._chosen.values())
        title = f"Selection, {len(self)} of {len(sizes)} parameters, {covered:,} of {sum(sizes.values()):,} elements"
        frozen = f"; {self._frozen} frozen left out" if self._frozen else ""
        return "\n".join([title + frozen, *table(["parameter", "shape", "elements", "module", ""], lines, indent="  ")])


def select(
    model: Any,
    include: Patterns = "*",
    exclude: Patterns = (),
    types: type | Sequence[type] | None = None,
    ndim: int | str | None = None,
) -> Selection:
    """Parameters of a model by name, as an input of terms: `pipeline(params=pn.select(model, "*.weight"))`.

    `model` is a PyTorch module, a Flax NNX or Equinox module, a Keras model or layer, or a nest of arrays.

    - `include`, `exclude`: globs over the whole name, where `*` crosses dots; compiled regular expressions, which are
      searched for; functions of name and parameter; or a list of these. A glob or expression that matches no parameter
      is an error that shows near names.
    - `types`: classes of modules; a parameter counts if the module that has it is an instance of one.
    - `ndim`: a number of dimensions, or a comparison such as ">=2".

    Tied weights are taken once, under the first name that matches, and excluded by any of their names. Buffers and
    statistics are never selected, and frozen parameters are left out. The selection reads the model whenever it is
    used, so it may be made before the model is moved, cast or loaded. Printed, it is a table of what it covers.

    >>> import torch
    >>> import penalties as pn
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    >>> pn.select(model, exclude="*.bias", types=torch.nn.Linear)
    Selection, 2 of 6 parameters, 48 of 74 elements
      parameter  shape   elements  module
      0.weight   (8, 4)  32        Linear
      2.weight   (2, 8)  16        Linear
    """
    including, excluding = as_patterns("select", "include", include), as_patterns("select", "exclude", exclude)
    classes = _classes(types)
    dimensions = _dimensions(ndim)
    found = list(parameters(model))
    if not found:
        expected = "a model or a nest with parameters: floating arrays, or modules that have some"
        raise OptionError("select", "model", type(model).__name__, expected)
    _check(found, "include", including)
    _check(found, "exclude", excluding)
    _check_classes(found, classes)
    excluded = {parameter.tie for parameter in found if _any(excluding, parameter)}
    # Patterns last: a function of the user's sees only what meets the other conditions.
    conditions: dict[str, tuple[Any, Callable[[Parameter], bool]]] = {
        "exclude": (exclude, lambda parameter: parameter.tie not in excluded),
        "types": ([one.__name__ for one in classes], lambda one: not classes or isinstance(one.owner, classes)),
        "ndim": (ndim, lambda parameter: dimensions(len(parameter.read().shape))),
        "include": (include, lambda parameter: _any(including, parameter)),
    }
    left = found
    for option, (given, holds) in conditions.items():
        before, left = left, [parameter for parameter in left if holds(parameter)]
        if not left:
            raise _none_left(option, given, before, found)
    taken: dict[Any, Parameter] = {}
    for parameter in left:
        taken.setdefault(parameter.tie, parameter)
    chosen = {parameter.name: parameter for parameter in taken.values() if parameter.trains}
    if not chosen:
        expected = "parameters that train: all that match are frozen"
        raise OptionError("select", "model", type(model).__name__, expected)
    return Selection(chosen, found, len(taken) - len(chosen))


def _none_left(option: str, given: Any, before: Sequence[Parameter], found: Sequence[Parameter]) -> OptionError:
    """The error for a condition that none of the parameters meets that the conditions before it left."""
    count, there = len({parameter.tie for parameter in before}), len({parameter.tie for parameter in found})
    which = f"the {count} parameters" if count == there else f"the {count} of {there} parameters that the others leave"
    sizes = sorted({len(parameter.read().shape) for parameter in before})
    expected = {
        "exclude": f"patterns that leave some of {which}",
        "types": f"classes of modules that have some of {which}",
        "ndim": f"a number of dimensions that some of {which} have: {', '.join(map(str, sizes))}",
        "include": f"patterns that match some of {which}",
    }
    return OptionError("select", option, given, expected[option])


def _any(patterns: Sequence[Pattern], parameter: Parameter) -> bool:
    return any(matches(pattern, parameter.name, parameter.read()) for pattern in patterns)


def _check(found: Sequence[Parameter], option: str, patterns: Sequence[Pattern]) -> None:
    """Raise for a glob or expression that matches nothing; functions may."""
    for pattern in patterns:
        if isinstance(pattern, str | re.Pattern) and not any(matches(pattern, p.name, None) for p in found):
            raise no_match("select", option, pattern, "parameter", [parameter.name for parameter in found])


def _classes(types: Any) -> tuple[type, ...]:
    given = () if types is None else (types,) if isinstance(types, type) else types
    named = isinstance(given, Sequence) and all(isinstance(one, type) for one in cast("Sequence[Any]", given))
    if not named or (types is not None and not given):
        raise OptionError("select", "types", types, "a class of modules, such as torch.nn.Linear, or a list of them")
    return tuple(cast("Sequence[type]", given))


def _check_classes(found: Sequence[Parameter], classes: Sequence[type]) -> None:
    there = sorted({type(parameter.owner).__name__ for parameter in found if parameter.owner is not None})
    for one in classes:
        if not any(isinstance(parameter.owner, one) for parameter in found):
            expected = f"classes of modules that have parameters: {', '.join(there)}" if there else "a model of modules"
            raise OptionError("select", "types", one.__name__, expected)


def _dimensions(ndim: int | str | None) -> Callable[[int], bool]:
    """Whether a number of dimensions is one that was asked for."""
    if ndim is None:
        return lambda count: True
    if is_whole(ndim):
        return lambda count: count == ndim
    match = re.fullmatch(r"\s*(>=|<=|>|<)\s*(\d+)\s*", ndim) if isinstance(ndim, str) else None
    if match is None:
        raise OptionError("select", "ndim", ndim, 'a whole number, or a comparison such as ">=2"')
    compare, bound = _COMPARISONS[match[1]], int(match[2])
    return lambda count: compare(count, bound)
