"""Functions by name: the penalties that ship here, and dotted paths to a user's own."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any, Final

from .. import functional
from ..errors import OptionError, did_you_mean
from ..functional.penalty import facts_of

__all__ = ["BUILT_IN", "DRAWING", "OVER_CLASSES", "SEPARABLE", "TRIABLE", "find", "path_of"]

_FACTS: Final = {name: facts for name in functional.__all__ if (facts := facts_of(getattr(functional, name)))}

BUILT_IN: Final[dict[str, Callable[..., Any]]] = {name: getattr(functional, name) for name in _FACTS}
"""The penalties that a term may name, each a function from arrays to a scalar."""

# For modules that do not ask for facts yet; nothing new uses these.
SEPARABLE: Final = tuple(BUILT_IN[name] for name, facts in _FACTS.items() if facts.rows)
OVER_CLASSES: Final = tuple(BUILT_IN[name] for name, facts in _FACTS.items() if facts.classes)
TRIABLE: Final = tuple(BUILT_IN[name] for name, facts in _FACTS.items() if not facts.needs_gradient)
DRAWING: Final = tuple(BUILT_IN[name] for name, facts in _FACTS.items() if facts.draws)


def find(name: str) -> Any:
    """What `"l1"` or `"package.module:object"` names."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    module_name, colon, path = name.partition(":")
    if not colon:
        hint = did_you_mean(name, BUILT_IN)
        raise OptionError("Term", "fn", name, f'one of {", ".join(BUILT_IN)}, or "package.module:function"{hint}')
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError("Term", "fn", name, f'"package.module:function" that can be imported ({error})') from error
    return found


def path_of(fn: Any) -> str | None:
    """The name under which `find` finds this very object, or None."""
    for name, function in BUILT_IN.items():
        if fn is function:
            return name
    module, qualified = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not module or not qualified or "<" in qualified or inspect.ismethod(fn):
        return None
    path = f"{module}:{qualified}"
    try:
        return path if find(path) is fn else None
    except OptionError:
        return None
