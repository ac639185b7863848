"""Functions by name: the penalties that ship here, and dotted paths to your own."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any, Final

from .. import functional
from ..errors import OptionError, did_you_mean
from ..functional.penalty import facts_of

__all__ = ["BUILT_IN", "find", "path_of"]

BUILT_IN: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(functional, name) for name in functional.__all__ if facts_of(getattr(functional, name)) is not None
}
"""The penalties that a term may name: the public functions that declare facts."""


def find(name: str) -> Any:
    """The object that `"l1"` or `"package.module:object"` names."""
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
    """The name under which `find` returns this very object, or None."""
    own = getattr(fn, "__name__", None)
    if own in BUILT_IN and BUILT_IN[own] is fn:
        return own
    module, qualified = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not module or not qualified or "<" in qualified or inspect.ismethod(fn):
        return None
    path = f"{module}:{qualified}"
    try:
        return path if find(path) is fn else None
    except OptionError:
        return None
