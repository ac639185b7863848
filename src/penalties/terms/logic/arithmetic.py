"""Rules as strings with arithmetic and comparisons: a small part of Python's grammar, read by `ast`, and never run."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from ...errors import OptionError, did_you_mean
from .reading import LONGEST

__all__ = ["Reader"]

_EXPECTED: Final = (
    "names, whole numbers, + - *, comparisons, distinct(…), & | ~ >> and parentheses, "
    "which comparisons need beside & | >>"
)
_SIGNS: Final = (ast.BitAnd, ast.BitOr, ast.RShift)
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
class Reader:
    """Reads one rule, over the variables of Z3 that have names."""

    z3: Any
    context: Any
    text: str
    names: Mapping[str, Any]

    def formula(self) -> Any:
        """What the string says, as a formula of Z3."""
        if not 0 < len(self.text) <= LONGEST:
            raise OptionError("hard_rules", "rules", f"{self.text[:40]}…", f"a rule of 1 to {LONGEST} characters")
        try:
            # One line, so that columns are enough to find parentheses.
            line = " ".join(self.text.split())
            tree = ast.parse(line, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._wrong(_EXPECTED) from error
        for node in ast.walk(tree):
            self._check_parentheses(line.encode(), node)
        return self._read(tree)

    def _check_parentheses(self, line: bytes, node: ast.AST) -> None:
        """Raise where `>>` meets another sign: Python takes `a & b >> c` for `a & (b >> c)`."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, _SIGNS):
            return
        for side in (node.left, node.right):
            if not isinstance(side, ast.BinOp) or not isinstance(side.op, _SIGNS):
                continue
            if not isinstance(side.op, ast.RShift) and not isinstance(node.op, ast.RShift):
                continue
            # Columns count bytes.
            before, after = line[: side.col_offset].rstrip(), line[side.end_col_offset :].lstrip()
            if not (before.endswith(b"(") and after.startswith(b")")):
                raise self._wrong("parentheses around each >> beside another sign")

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
