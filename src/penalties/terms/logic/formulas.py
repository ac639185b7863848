"""Rules as formulas of Z3: those of `reading`, with comparisons and arithmetic, or what a function makes."""

import ast
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from ...errors import MissingLibraryError, OptionError, did_you_mean
from .reading import named_rules, read

__all__ = ["Formulas", "Kind", "formulas", "solver_library"]

Kind: TypeAlias = Literal["classes", "booleans", "numbers"]

_EXPECTED: Final = (
    "names, whole numbers, + - *, comparisons, distinct(…), & | ~ >> and parentheses, "
    "which comparisons need beside & | >>"
)
_COMPARISONS: Final[dict[Any, Callable[[Any, Any], Any]]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_ARITHMETIC: Final[dict[Any, Callable[[Any, Any], Any]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
}


@dataclass(frozen=True, slots=True)
class Formulas:
    """The rules of a call, in a context of their own: Z3 must not be used from two threads in one."""

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
        named = {name: _Reader(z3, context, str(rule), every).formula() for name, rule in given.items()}
    for name, formula in named.items():
        if not z3.is_bool(formula) or not isinstance(name, str):
            raise OptionError("hard_rules", f"rules[{name!r}]", formula, "a condition, such as a + b == 3")
        if name in every:
            raise OptionError("hard_rules", "rules", name, "rules named otherwise than variables and facts")
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


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one rule."""

    z3: Any
    context: Any
    text: str
    names: Mapping[str, Any]

    def formula(self) -> Any:
        return self._read(read("hard_rules", "rules", self.text))

    def _read(self, node: ast.expr) -> Any:
        z3, operator = self.z3, cast("Any", type(getattr(node, "op", None)))
        if isinstance(node, ast.Name):
            if node.id not in self.names:
                raise self._wrong(f"names among {', '.join(self.names)}{did_you_mean(node.id, self.names)}")
            return self.names[node.id]
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return z3.IntVal(node.value, self.context)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.UnaryOp) and operator is ast.USub:
            return -self._number(node.operand)
        if isinstance(node, ast.UnaryOp) and operator is ast.Invert:
            return z3.Not(self._condition(node.operand))
        if isinstance(node, ast.BinOp) and operator in _ARITHMETIC:
            return _ARITHMETIC[operator](self._number(node.left), self._number(node.right))
        connectives: Any = {ast.BitAnd: z3.And, ast.BitOr: z3.Or, ast.RShift: z3.Implies}
        if isinstance(node, ast.BinOp) and operator in connectives:
            return connectives[operator](self._condition(node.left), self._condition(node.right))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "distinct" and node.args and not node.keywords:
            return z3.Distinct([self._number(argument) for argument in node.args])
        raise self._wrong(_EXPECTED)

    def _comparison(self, node: ast.Compare) -> Any:
        sides = [self._read(side) for side in (node.left, *node.comparators)]
        flags = [self.z3.is_bool(side) for side in sides]
        equal = all(isinstance(sign, ast.Eq | ast.NotEq) for sign in node.ops)
        if any(flags) and not (all(flags) and equal):
            raise self._wrong("comparisons of numbers with numbers, and only == and != of conditions")
        signs = [_COMPARISONS.get(cast("Any", type(sign))) for sign in node.ops]
        if None in signs:
            raise self._wrong(_EXPECTED)
        compare = cast("list[Callable[[Any, Any], Any]]", signs)
        return self.z3.And([sign(a, b) for sign, a, b in zip(compare, sides, sides[1:], strict=False)])

    def _number(self, node: ast.expr) -> Any:
        found = self._read(node)
        if self.z3.is_bool(found):
            raise self._wrong(f"a number where {ast.unparse(node)} is a condition")
        return found

    def _condition(self, node: ast.expr) -> Any:
        found = self._read(node)
        if not self.z3.is_bool(found):
            raise self._wrong(f"a condition where {ast.unparse(node)} is a number; comparisons need parentheses there")
        return found

    def _wrong(self, expected: str) -> OptionError:
        return OptionError("hard_rules", "rules", self.text, expected)
