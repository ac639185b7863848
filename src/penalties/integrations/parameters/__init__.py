"""The parameters of a model, whatever library it is of."""

import sys
from collections.abc import Iterator
from typing import Any

from .parameter import Parameter

__all__ = ["Parameter", "parameters"]


def parameters(model: Any) -> Iterator[Parameter]:
    """Every parameter of a model in its order, a tied one under each of its names; never buffers or statistics."""
    torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
    nnx, equinox = sys.modules.get("flax.nnx"), sys.modules.get("equinox")
    # Keras first: on PyTorch its layers are modules.
    if keras is not None and isinstance(model, keras.Layer):
        from .keras import parameters as found
    elif torch is not None and isinstance(model, torch.nn.Module):
        from .torch import parameters as found
    elif nnx is not None and isinstance(model, nnx.Module):
        from .nnx import parameters as found
    elif equinox is not None and isinstance(model, equinox.Module):
        from .equinox import parameters as found
    else:
        from .nests import parameters as found
    return found(model)
