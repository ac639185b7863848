"""Parameters of Keras models and layers."""

from collections.abc import Iterator
from typing import Any

from ...errors import OptionError
from ..layers import dotted, named_layers, own_variables
from .parameter import Parameter

__all__ = ["parameters"]


def parameters(model: Any) -> Iterator[Parameter]:
    """The trainable variables by their paths; what is frozen and what is a statistic Keras does not tell apart."""
    owners = {id(variable): layer for _, layer in named_layers(model) for variable in own_variables(layer)}
    if not model.built:
        raise OptionError("select", "model", model.name, "a model with variables: call or build the model first")
    names: set[str] = set()
    for variable in model.trainable_variables:
        name = dotted(variable.path)
        if name in names:
            raise OptionError("select", "model", name, "one parameter of each name: give the layers different names")
        names.add(name)
        # The value is the array of the backend, and the traced one inside a stateless call.
        yield Parameter(name, lambda variable=variable: variable.value, owners.get(id(variable)), id(variable))
