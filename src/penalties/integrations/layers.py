"""Keras layers, by their paths."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

__all__ = ["dotted", "named_layers", "own_variables"]


def named_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Every layer of a model, once, outer ones first; one without a path, as without weights, beside the others."""
    for path, layer in _layers(model, model.path or model.name, set()):
        yield dotted(path), layer


def dotted(path: str) -> str:
    """The path of a layer or variable with dots, as names are everywhere else."""
    return path.replace("/", ".")


def own_variables(layer: Any) -> list[Any]:
    """The variables of a layer that no layer inside it has."""
    inside = {id(variable) for part in _inside(layer) for variable in part.variables}
    return [variable for variable in layer.variables if id(variable) not in inside]


def _layers(layer: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    seen.add(id(layer))
    yield path, layer
    inside = _inside(layer)
    # The layers of a functional model do not have its path before their names.
    outer = next((part.path.rpartition("/")[0] for part in inside if part.path is not None), path)
    for part in inside:
        if id(part) not in seen:
            yield from _layers(part, part.path or f"{outer}/{part.name}".lstrip("/"), seen)


def _inside(layer: Any) -> list[Any]:
    """The layers directly inside one, by its attributes: only models have a public list of them."""
    keras: Any = sys.modules["keras"]
    attributes = cast("dict[str, Any]", vars(layer))
    inside: list[Any] = []
    for value in list(attributes.values()):
        parts: list[Any] = [value]
        if isinstance(value, Mapping):
            parts = list(cast("Mapping[Any, Any]", value).values())
        elif isinstance(value, list | tuple):
            parts = list(cast("Iterable[Any]", value))
        # A regularizer with variables is a layer to Keras, but no layer of the model.
        inside += [part for part in parts if isinstance(part, keras.Layer) and not isinstance(part, keras.Regularizer)]
    return inside
