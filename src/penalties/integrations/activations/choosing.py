"""Which modules a capture is about."""

from collections.abc import Sequence
from typing import Any

from ..matching import Pattern, matches, no_match

__all__ = ["choose"]


def choose(
    named: Sequence[tuple[str, Any]], patterns: Sequence[Pattern]
) -> tuple[dict[str, Any], list[tuple[Pattern, Sequence[str]]]]:
    """The modules that match by name, a shared one under the first that does, and the names of each pattern."""
    taken: dict[int, str] = {}
    names: list[tuple[Pattern, Sequence[str]]] = []
    for pattern in patterns:
        matched = [(name, module) for name, module in named if matches(pattern, name, module)]
        if not matched:
            raise no_match("capture", "names", pattern, "module", [name for name, _ in named])
        names.append((pattern, [taken.setdefault(id(module), name) for name, module in matched]))
    return {taken[id(module)]: module for _, module in named if id(module) in taken}, names
