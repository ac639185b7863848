"""Rules as strings, for configs: a small part of Python's grammar, read by `ast` and never evaluated."""

import ast
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from ...errors import OptionError
from .rules import Rule, Var

__all__ = ["named_rules", "parse", "read"]

_LONGEST: Final = 10_000
"""Characters of a rule; what is longer was made by a program, which can make a `Rule`."""

_SIGNS: Final = {ast.BitAnd: "&", ast.BitOr: "|", ast.RShift: ">>"}
_WORDS: Final = {ast.And: "&", ast.Or: "|", ast.Not: "~"}


def parse(text: str) -> Rule:
    """The rule that a string says, in Python's own operators: names, `&`, `|`, `~`, `>>` and parentheses.

    `>>` binds more tightly than `&` and `|` in Python, so that a rule which mixes them has to have parentheses.

    >>> parse("(rain & ~umbrella) >> wet").variables
    ('rain', 'umbrella', 'wet')
    """
    return _rule(text, read("parse", "text", text))


def read(function: str, option: str, text: Any) -> ast.expr:
    """The syntax tree of a rule; `>>` beside `&` or `|` without parentheses is an error."""
    expected = f'a rule such as "(a & b) >> c", of at most {_LONGEST} characters'
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST:
        shown = f"{text[:40]}…" if isinstance(text, str) and len(text) > _LONGEST else cast("object", text)
        raise OptionError(function, option, shown, expected)
    try:
        # One line, so that columns are enough to find parentheses; in bytes, as ast counts.
        line = " ".join(text.split())
        tree = ast.parse(line, mode="eval").body
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr | ast.RShift):
                _check_parentheses(function, option, line.encode(), node)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(function, option, text, expected) from error
    return tree


def _check_parentheses(function: str, option: str, line: bytes, node: ast.BinOp) -> None:
    """Raise where `>>` meets another sign: Python takes `a & b >> c` for `a & (b >> c)`."""
    for side in (node.left, node.right):
        if not isinstance(side, ast.BinOp) or not isinstance(side.op, ast.BitAnd | ast.BitOr | ast.RShift):
            continue
        if not isinstance(side.op, ast.RShift) and not isinstance(node.op, ast.RShift):
            continue
        before = line[: side.col_offset].rstrip()
        after = line[side.end_col_offset :].lstrip()
        if not (before.endswith(b"(") and after.startswith(b")")):
            raise OptionError(function, option, line.decode(), "parentheses around each >> beside another sign")


def _rule(text: str, node: ast.expr) -> Rule:
    if isinstance(node, ast.Name):
        return Var(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~_rule(text, node.operand)
    if isinstance(node, ast.BinOp) and (sign := _SIGNS.get(cast("Any", type(node.op)))):
        left, right = _rule(text, node.left), _rule(text, node.right)
        return left & right if sign == "&" else left | right if sign == "|" else left >> right
    word = _WORDS.get(cast("Any", type(getattr(node, "op", None))))
    hint = f"{word} instead of the word" if word else f"names, &, |, ~, >> and parentheses, not {ast.unparse(node)}"
    raise OptionError("parse", "text", text, hint)


def named_rules(function: str, rules: Any) -> dict[str, Any]:
    """Rules by name, from a mapping or a sequence, in which each is named by what it says."""
    if isinstance(rules, str | Rule):
        rules = [rules]
    if isinstance(rules, Mapping):
        named = dict(cast("Mapping[Any, Any]", rules))
    elif isinstance(rules, Iterable):
        named = {str(rule): rule for rule in cast("Iterable[Any]", rules)}
    else:
        named = {}
    right = [isinstance(name, str) and name and isinstance(rule, str | Rule) for name, rule in named.items()]
    if not right or not all(right):
        expected = 'rules by name, such as {"wet": "rain >> wet"}, or a list of them'
        raise OptionError(function, "rules", cast("Any", rules), expected)
    return named
