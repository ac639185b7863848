"""Parameters of Equinox modules."""

import sys
from collections.abc import Iterator
from typing import Any

from .parameter import Parameter

__all__ = ["parameters"]


def parameters(model: Any) -> Iterator[Parameter]:
    """The floating arrays, which is what `equinox.filter` keeps; never the initial values of statistics."""
    equinox: Any = sys.modules["equinox"]
    jax: Any = sys.modules["jax"]

    def is_statistic(node: Any) -> bool:
        return isinstance(node, equinox.nn.StateIndex)

    kept = equinox.filter(model, equinox.is_inexact_array, is_leaf=is_statistic)
    for path, array in jax.tree_util.tree_flatten_with_path(kept)[0]:
        keys = [_key(entry) for entry in path]
        owner: Any = model
        inside: Any = model
        for key, entry in zip(keys, path, strict=True):
            if isinstance(entry, jax.tree_util.FlattenedIndexKey):
                break  # a class that does not say how its parts are reached
            inside = getattr(inside, key) if isinstance(entry, jax.tree_util.GetAttrKey) else inside[key]
            owner = inside if isinstance(inside, equinox.Module) else owner
        name = ".".join(map(str, keys))
        # Arrays of JAX never change, so equal ones are not tied: each has its own update.
        yield Parameter(name, lambda array=array: array, owner, name)


def _key(entry: Any) -> Any:
    """The attribute, index or key that an entry of a path stands for."""
    for kind in ("name", "idx", "key"):
        if hasattr(entry, kind):
            return getattr(entry, kind)
    raise AssertionError(f"a path with a {type(entry).__name__}")
