"""Parameters of Flax NNX modules."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from .parameter import Parameter

__all__ = ["parameters"]


def parameters(model: Any) -> Iterator[Parameter]:
    """Every `nnx.Param`, a tied one under each of its names; those of a shared module under its first."""
    nnx: Any = sys.modules["flax.nnx"]
    for path, module in nnx.iter_graph(model):
        if isinstance(module, nnx.Module):
            attributes = cast("dict[str, Any]", vars(module))
            for attribute, variable in attributes.items():
                if isinstance(variable, nnx.Param):
                    name = ".".join(map(str, (*path, attribute)))
                    yield Parameter(name, partial(variable.__getitem__, ...), module, id(variable))
