"""The options of the built-in functions, from their signatures: for checks, editors and descriptions."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ...pipeline.catalogue import BUILT_IN
from ...training import adapters, losses
from ..problems import nearest, shown
from .messages import allowed

__all__ = ["ADAPTERS", "SHIPPED", "Option", "inputs_of", "options_of", "wrong_value"]

ADAPTERS: Final[dict[str, Callable[..., Any]]] = {
    f"{adapters.__name__}:{name}": getattr(adapters, name) for name in adapters.__all__
}
"""The penalties over a batch, one array per datum, by their paths."""

SHIPPED: Final[dict[str, Callable[..., Any]]] = BUILT_IN | ADAPTERS | losses.BY_NAME
"""Every built-in function that a config may name."""

_ARRAYS: Final = ("mask", "reference", "state", "step")
"""Parameters with a default that are not options: inputs, and what a pipeline passes."""

_STRICT: Final = ConfigDict(strict=True, allow_inf_nan=False)
_SPECIAL: Final[dict[str, Any]] = {"seed": Annotated[int, Field(ge=0)], "fn": str | None}
"""The values of a config where Python code may pass other types."""


class Option(NamedTuple):
    """An option of a function."""

    name: str
    default: Any
    takes: TypeAdapter[Any]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its values."""
        return self.takes.json_schema()

    @property
    def allowed(self) -> str:
        """Its values, in words."""
        return allowed({}, self.schema)


@cache
def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The options of a built-in function, by name.

    >>> [option.name for option in options_of(SHIPPED["kl_estimate"]).values()]
    ['estimator', 'reduction']
    >>> options_of(SHIPPED["kl_estimate"])["estimator"].allowed
    '"k1", "k2" or "k3"'
    """
    found: dict[str, Option] = {}
    for one in inspect.signature(function).parameters.values():
        if one.default is one.empty or one.name in _ARRAYS:
            continue
        annotation: Any = _SPECIAL.get(one.name, one.annotation)
        if get_origin(annotation) is Literal:
            # A term is one number, so it must be reduced.
            annotation = Literal[tuple(word for word in get_args(annotation) if word != "none")]
        found[one.name] = Option(one.name, one.default, TypeAdapter(annotation, config=_STRICT))
    return found


def inputs_of(function: Callable[..., Any]) -> list[str]:
    """The inputs of a function, those without a default first."""
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.default is one.empty] + [
        f"{one.name} (optional)" for one in parameters if one.name in ("mask", "reference") and one.default is None
    ]


def wrong_value(function: Any, option: str, value: Any) -> str | None:
    """What is wrong with the type of an option's value; None if nothing is, or the function is not built in."""
    if function not in SHIPPED.values() or option not in options_of(function):
        return None
    known = options_of(function)[option]
    try:
        known.takes.validate_python(value)
    except ValidationError:
        hint = nearest(value, known.schema.get("enum", ()), quoted=True) if isinstance(value, str) else ""
        return f"found {shown(value)}; expected {known.allowed}{hint}"
    return None
