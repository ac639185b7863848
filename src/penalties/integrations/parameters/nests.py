"""Parameters in plain nests: lists, tuples and mappings of arrays and models, and the pytrees that JAX knows."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ... import trees
from ...backends import owner
from ...errors import OptionError
from .parameter import Parameter

__all__ = ["parameters"]


def parameters(nest: Any, library: Callable[[Any], Callable[[Any], Iterator[Parameter]] | None]) -> Iterator[Parameter]:
    """The floating arrays, by their keys; a tensor that does not require a gradient is frozen.

    What is a model itself, for which `library` returns what finds them, has its own parameters.
    """

    def is_model(part: Any) -> bool:
        _check(part)
        return library(part) is not None

    for name, leaf in trees.named(nest, is_model):
        found = library(leaf)
        if found is not None:
            for parameter in found(leaf):
                full = ".".join(filter(None, (name, parameter.name)))
                yield replace(parameter, name=full, tie=full if parameter.tie == parameter.name else parameter.tie)
            continue
        ops = owner(leaf)
        if ops is not None and ops.differentiable(leaf, requested=True):
            # Arrays of JAX never change, so equal ones are not tied: each has its own update.
            tie = name if ops.LIBRARY == "JAX" else id(leaf)
            trains = ops.LIBRARY != "PyTorch" or leaf.requires_grad
            yield Parameter(name, lambda array=leaf: array, None, tie, trains)


def _check(part: Any) -> None:
    """Raise for what is not of a model: the state of an optimizer, which looks like parameters, and statistics."""
    if hasattr(part, "opt_state") or (hasattr(part, "keys") and "opt_state" in part):
        given, expected = type(part).__name__, "the parameters without the optimizer, such as state.params"
    elif type(part).__module__.partition(".")[0] == "optax":
        given, expected = type(part).__name__, "the parameters of a model, not the state of an optimizer"
    elif hasattr(part, "keys") and "batch_stats" in part:
        given, expected = list(part.keys()), 'the parameters without the statistics: variables["params"]'
    else:
        return
    raise OptionError("select", "model", given, expected)
