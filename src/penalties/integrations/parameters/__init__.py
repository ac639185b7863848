"""The parameters of a model, whatever library it is of."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from . import nests
from .parameter import Parameter

__all__ = ["Parameter", "parameters"]


def parameters(model: Any) -> Iterator[Parameter]:
    """Every parameter of a model in its order, a tied one under each of its names; never buffers or statistics."""
    found = _library(model)
    every = nests.parameters(model, _library) if found is None else found(model)
    # An array that is all of the model has no name.
    return (parameter for parameter in every if parameter.name)


def _library(model: Any) -> Callable[[Any], Iterator[Parameter]] | None:
    """What finds the parameters of a model of some library; None for anything else."""
    torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
    nnx, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    # Keras first: on PyTorch its layers are modules.
    if keras is not None and isinstance(model, keras.Layer):
        from .keras import parameters as found
    elif torch is not None and isinstance(model, torch.nn.Module):
        from .torch import parameters as found
    elif nnx is not None and (isinstance(model, nnx.Pytree | nnx.Variable) or _has_variables(nnx, model)):
        from .nnx import parameters as found
    elif equinox is not None and isinstance(model, equinox.Module):
        from .equinox import parameters as found
    else:
        return None
    return found


def _has_variables(nnx: Any, model: Any) -> bool:
    """Whether a model is a state of NNX with variables, which say what they are; others are mappings of arrays."""
    return isinstance(model, nnx.State) and any(isinstance(part, nnx.Variable) for _, part in nnx.to_flat_state(model))
