"""Rules as strings, for configs.

Not by `ast`: torch.compile, which may meet the string of a config, cannot trace that. It traces this.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from ...errors import OptionError
from .rules import RESERVED, Joined, Negated, Rule, Var

__all__ = ["LONGEST", "named_rules", "parse"]

LONGEST: Final = 10_000
"""Characters of a rule. What is longer was made by a program, which can make a `Rule`."""

_DEEPEST: Final = 100
_WORDS: Final = {"and": "&", "or": "|", "not": "~"}


def parse(text: str) -> Rule:
    """The rule that a string says: names, `&`, `|`, `~`, `>>` and parentheses.

    As in Python, but for a `>>` beside another `&`, `|` or `>>`. There Python reads `a & b >> c` as `a & (b >> c)`, and
    here it needs parentheses.

    >>> parse("(rain & ~umbrella) >> wet").variables
    ('rain', 'umbrella', 'wet')
    """
    if not isinstance(cast("Any", text), str) or not 0 < len(text) <= LONGEST:
        given = f"{text[:40]}…" if isinstance(cast("Any", text), str) and text else text
        raise OptionError("parse", "text", given, f'a rule of 1 to {LONGEST} characters, such as "(a & b) >> c"')
    spaced = text.replace(">>", " >> ")
    for sign in "()&|~":
        spaced = spaced.replace(sign, f" {sign} ")
    words = [*spaced.split(), ""]
    rule, at = _statement(text, words, 0, _DEEPEST)
    if words[at] != "":
        raise _unexpected(text, words[at])
    return rule


def _statement(text: str, words: list[str], at: int, deeper: int) -> tuple[Rule, int]:
    """What stands from a word on, as far as it is a rule, and where it ends."""
    rule, at = _operand(text, words, at, deeper)
    if words[at] == ">>":
        then, at = _operand(text, words, at + 1, deeper)
        rule, joined = Joined(">>", rule, then), True
    else:
        joined = False
        either: Rule | None = None
        while words[at] in ("&", "|"):
            joined = True
            if words[at] == "|":
                either = rule if either is None else Joined("|", either, rule)
                rule, at = _operand(text, words, at + 1, deeper)
            else:
                other, at = _operand(text, words, at + 1, deeper)
                rule = Joined("&", rule, other)
        rule = rule if either is None else Joined("|", either, rule)
    if joined and words[at] in ("&", "|", ">>"):
        raise OptionError("parse", "text", text, "parentheses around each >> beside another sign")
    return rule, at


def _operand(text: str, words: list[str], at: int, deeper: int) -> tuple[Rule, int]:
    """A variable, a rule in parentheses, or what either is not."""
    if deeper == 0:
        raise OptionError("parse", "text", text, f"at most {_DEEPEST} nested ~ and parentheses")
    if words[at] == "~":
        rule, at = _operand(text, words, at + 1, deeper - 1)
        return Negated(rule), at
    if words[at] == "(":
        rule, at = _statement(text, words, at + 1, deeper - 1)
        if words[at] != ")":
            raise _unexpected(text, words[at])
        return rule, at + 1
    if not words[at].isidentifier() or words[at] in RESERVED:
        raise _unexpected(text, words[at])
    return Var(words[at]), at + 1


def _unexpected(text: str, word: str) -> OptionError:
    if word in _WORDS:
        return OptionError("parse", "text", text, f"{_WORDS[word]} instead of the word {word}")
    there = f"and not {word}" if word else "up to its end"
    return OptionError("parse", "text", text, f"names, &, |, ~, >> and pairs of parentheses, {there}")


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
