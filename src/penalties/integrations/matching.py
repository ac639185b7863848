"""Names by pattern: globs, regular expressions and functions."""

import difflib
import re
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, cast

from ..errors import OptionError

__all__ = ["Pattern", "Patterns", "as_patterns", "matches", "no_match"]

Pattern: TypeAlias = str | re.Pattern[str] | Callable[[str, Any], Any]
"""A glob, a compiled regular expression, or a function of a name and what it names."""

Patterns: TypeAlias = Pattern | Sequence[Pattern]

_SHOWN = 5
"""The names that an error shows."""


def as_patterns(function: str, option: str, given: Patterns) -> tuple[Pattern, ...]:
    """One pattern or several, as a tuple; raises for anything else."""
    single = isinstance(given, str | re.Pattern) or not isinstance(given, Sequence)
    patterns: tuple[Pattern, ...] = (cast("Pattern", given),) if single else tuple(cast("Sequence[Pattern]", given))
    for pattern in patterns:
        if not isinstance(pattern, str | re.Pattern) and (not callable(pattern) or isinstance(pattern, type)):
            expected = "a glob, a compiled regular expression, a function of name and value, or a list of these"
            raise OptionError(function, option, cast("object", given), expected)
    return patterns


def matches(pattern: Pattern, name: str, thing: Any) -> bool:
    """Whether a pattern takes this name.

    A glob must match the whole name, and its `*` crosses dots; a regular expression is searched for.

    >>> import re
    >>> [matches(p, "layers.0.weight", None) for p in ("*.weight", "weight", "layers", re.compile("weight$"))]
    [True, False, False, True]
    """
    if isinstance(pattern, str):
        return fnmatchcase(name, pattern)
    if isinstance(pattern, re.Pattern):
        return pattern.search(name) is not None
    return bool(pattern(name, thing))


def no_match(function: str, option: str, pattern: Pattern, kind: str, names: Collection[str]) -> OptionError:
    """The error for a pattern that matches nothing, with names that are near it."""
    if not names:
        return OptionError(function, option, pattern, f"a model that has {kind}s")
    text = pattern if isinstance(pattern, str) else pattern.pattern if isinstance(pattern, re.Pattern) else ""
    inside = [name for name in names if text and name.startswith(f"{text}.")]
    if inside:
        hint = f'"{text}.*" for the {len(inside)} {kind}s inside it'
    else:
        words = re.sub(r"[^\w.]+", "", text)
        near = difflib.get_close_matches(words, names, n=_SHOWN, cutoff=0.4) or list(names)[:_SHOWN]
        hint = ", ".join(f'"{name}"' for name in near) + (", …" if len(names) > len(near) else "")
    shown = text if isinstance(pattern, re.Pattern) else pattern
    return OptionError(function, option, shown, f"a pattern that matches a {kind}, such as {hint}")
