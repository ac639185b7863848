"""Rules as formulas of Z3: those of `reading`, with comparisons and arithmetic, or what a function makes."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from ...errors import MissingLibraryError, OptionError
from .arithmetic import Reader
from .reading import named_rules

__all__ = ["Formulas", "Kind", "formulas", "solver_library"]

Kind: TypeAlias = Literal["classes", "booleans", "numbers"]


@dataclass(frozen=True, slots=True)
class Formulas:
    """The rules of a call, in their own context: Z3 must not be used from two threads in one."""

    context: Any
    variables: dict[str, Any]
    """The decisions."""
    facts: dict[str, Any]
    """What is known of each row."""
    domain: list[Any]
    """What decisions can be at all."""
    rules: dict[str, Any]


def solver_library() -> Any:
    """Z3, or what to install."""
    try:
        return importlib.import_module("z3")
    except ModuleNotFoundError as error:
        raise MissingLibraryError("hard_rules", "z3-solver", extra="logic") from error


def formulas(kind: Kind, variables: Sequence[str], classes: int, facts: Mapping[str, bool], rules: Any) -> Formulas:
    """The formulas over these variables and facts, which are flags where they say True, and else whole numbers."""
    z3 = solver_library()
    context = z3.Context()
    make = z3.Bool if kind == "booleans" else z3.Int
    decided = {name: make(name, context) for name in variables}
    known = {name: (z3.Bool if flag else z3.Int)(name, context) for name, flag in facts.items()}
    domain: list[Any] = []
    if kind == "classes":
        domain = [z3.And(variable >= 0, variable < classes) for variable in decided.values()]
    every = {**decided, **known}
    if callable(rules):
        named: Any = rules(every)
        if not isinstance(named, Mapping) or not named:
            raise OptionError(
                "hard_rules", "rules", cast("Any", named), "a function that returns {name: formula of Z3}"
            )
        named = dict(cast("Mapping[str, Any]", named))
        for name, formula in named.items():
            _check_closed(z3, name, formula, every)
    else:
        given = named_rules("hard_rules", rules)
        named = {name: Reader(z3, context, str(rule), every).formula() for name, rule in given.items()}
    for name, formula in named.items():
        if not z3.is_bool(formula) or not isinstance(name, str):
            raise OptionError("hard_rules", f"rules[{name!r}]", formula, "a condition, such as a + b == 3")
        if name in every:
            raise OptionError("hard_rules", "rules", name, "rules whose names differ from those of variables and facts")
    return Formulas(context, decided, known, domain, named)


def _check_closed(z3: Any, name: str, formula: Any, known: Mapping[str, Any]) -> None:
    """Raise for a variable that nothing decides: a rule would hold for one value of it, and another for another."""
    parts = [formula] if z3.is_expr(formula) else []
    seen = set[int]()
    while parts:
        part = parts.pop()
        if part.get_id() in seen:
            continue
        seen.add(part.get_id())
        parts += [part.body()] if z3.is_quantifier(part) else part.children()
        if z3.is_app(part) and part.decl().kind() == z3.Z3_OP_UNINTERPRETED and part.decl().name() not in known:
            expected = f"no variables but those that the function was given: {', '.join(known)}"
            raise OptionError("hard_rules", f"rules[{name!r}]", part.decl().name(), expected)
