"""Activations of a model, by the names of its modules."""

import sys
from contextlib import AbstractContextManager
from typing import Any

from ...errors import OptionError
from ..matching import Patterns, as_patterns
from .captured import Captured

__all__ = ["Captured", "capture"]


def capture(model: Any, names: Patterns) -> AbstractContextManager[Captured]:
    """Record what modules return while the block runs, by name: an input of terms over activations.

    `names` is a glob, a compiled regular expression, a function of name and module, or a list of these, as in `select`.
    `model` is a PyTorch module, a Flax NNX module or a Keras model.

    Recomputation by non-reentrant checkpointing is not recorded again. A module that is called several times has a list
    of outputs. `clear()` forgets them, for a loop inside one block; a compiled model needs such a block, entered before
    its first call. The block raises if a pattern saw nothing, if an output has no graph although gradients are on, as
    under reentrant checkpointing, or if it was changed in place.

    >>> import torch
    >>> import penalties as pn
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> with pn.capture(model, ["1", "2*"]) as activations:
    ...     prediction = model(torch.ones(3, 4))
    >>> activations
    Captured, 2 of 2 modules
      module  calls  shapes
      1       1      (3, 8)
      2       1      (3, 2)
    >>> pn.Pipeline([pn.Term(pn.l1, inputs="activations.1")])(activations=activations).total.requires_grad
    True
    """
    patterns = as_patterns("capture", "names", names)
    if not patterns:
        raise OptionError("capture", "names", names, "at least one name or pattern")
    return _captures(model)(model, patterns)


def _captures(model: Any) -> Any:
    torch, keras, nnx = (sys.modules.get(name) for name in ("torch", "keras", "flax.nnx"))
    # Keras first: on PyTorch its layers are modules.
    if keras is not None and isinstance(model, keras.Layer):
        from .keras import capture as found
    elif torch is not None and isinstance(model, torch.nn.Module):
        from .torch import capture as found
    elif nnx is not None and isinstance(model, nnx.Module):
        from .nnx import capture as found
    else:
        expected = "a PyTorch module, a Flax NNX module or a Keras model; elsewhere return activations from the model"
        raise OptionError("capture", "model", type(model).__name__, expected)
    return found
