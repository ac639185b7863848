"""Parameters of Flax NNX modules and states."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from .parameter import Parameter

__all__ = ["parameters"]


def parameters(model: Any) -> Iterator[Parameter]:
    """Every `nnx.Param`, a tied one under each of its names; those of a shared module under its first."""
    nnx: Any = sys.modules["flax.nnx"]
    nodes: dict[tuple[Any, ...], Any] = dict(nnx.iter_graph(model))
    found: dict[tuple[Any, ...], Any] = {}
    for path, node in nodes.items():
        if isinstance(node, nnx.Param):
            found[path] = node
        elif _has_children(node):
            # The graph has each variable once: a tied one is found again among the children of what has it.
            for key, child in nnx.iter_children(node):
                if isinstance(child, nnx.Param):
                    found.setdefault((*path, key), child)
    for path, variable in found.items():
        above = (nodes[path[:length]] for length in reversed(range(len(path))))
        owner = next((node for node in above if isinstance(node, nnx.Pytree)), None)
        yield Parameter(".".join(map(str, path)), partial(variable.__getitem__, ...), owner, id(variable))


def _has_children(node: Any) -> bool:
    """Whether a node of a graph is a module, or a list, a mapping or another pytree in one."""
    nnx, jax = sys.modules["flax.nnx"], sys.modules["jax"]
    if isinstance(node, nnx.Variable):
        return False
    return isinstance(node, nnx.Pytree) or not jax.tree_util.all_leaves([node])
