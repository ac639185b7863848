"""Functions by name: the penalties that ship here, and dotted paths to a user's own."""

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Final

from .. import functional
from ..errors import OptionError

__all__ = ["BUILT_IN", "DRAWING", "OVER_CLASSES", "SEPARABLE", "TRIABLE", "find", "path_of"]

BUILT_IN: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(functional, name)
    for name in (
        "l1",
        "l2",
        "elastic_net",
        "smooth_l1",
        "kl_divergence",
        "js_divergence",
        "entropy",
        "consistency",
        "orthogonality",
        "gradient_penalty",
        "interpolated_gradient_penalty",
        "output_magnitude",
        "kl_estimate",
        "entropy_estimate",
    )
}
"""The penalties that a term may name, each a function from arrays to a scalar."""

SEPARABLE: Final = tuple(
    BUILT_IN[name]
    for name in (
        "l1",
        "l2",
        "elastic_net",
        "smooth_l1",
        "kl_divergence",
        "js_divergence",
        "entropy",
        "consistency",
        "kl_estimate",
        "entropy_estimate",
    )
)
"""Those that are a sum or mean over rows, so that they can be computed some rows at a time."""

OVER_CLASSES: Final = tuple(BUILT_IN[name] for name in ("kl_divergence", "js_divergence", "entropy", "consistency"))
"""Those that sum over the last axis, or may, before they reduce."""

TRIABLE: Final = (*SEPARABLE, BUILT_IN["orthogonality"], BUILT_IN["output_magnitude"])
"""Those that can be tried on a few numbers, to see whether their options are right."""

DRAWING: Final = (BUILT_IN["orthogonality"], BUILT_IN["interpolated_gradient_penalty"])
"""Those that draw: in a pipeline their seed is folded with the step."""


def find(name: str) -> Any:
    """What `"l1"` or `"package.module:object"` names."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    module_name, colon, path = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, BUILT_IN, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
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
