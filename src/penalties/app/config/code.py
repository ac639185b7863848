"""The modules that a config names, and where they are: importing one runs it."""

import importlib.machinery
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..problems import Problem
from .objective import functions_of, is_path

if TYPE_CHECKING:
    from .config import Config

__all__ = ["holding", "inside", "named"]


def named(config: "Config") -> list[tuple[str, str]]:
    """The paths of functions in a config, each with its key."""
    found = [("train.loss", config.train.loss)]
    found += [
        (f"term.{index}.{key}", path) for index, table in enumerate(config.term, 1) for key, path in functions_of(table)
    ]
    found += [("samples.metrics", metric) for metric in config.samples.metrics]
    return [(where, path) for where, path in found if is_path(path)]


def holding(config: "Config", folders: Sequence[str]) -> dict[str, None]:
    """The folders that hold the modules that the config names; the first one counts."""
    found: dict[str, None] = {}
    for root in [path.partition(":")[0].partition(".")[0] for _, path in named(config)]:
        paths = {one: os.path.join(one, root) for one in folders}
        there = [one for one, path in paths.items() if os.path.isfile(f"{path}.py") or os.path.isdir(path)]
        found |= dict.fromkeys(there[:1])
    return found


def inside(config: "Config", folder: Path) -> list[Problem]:
    """A problem for each module that would be imported from this folder, in which nothing is code."""
    whole = folder.resolve()
    return [
        Problem(where, f'"{path}" is in {folder}, from which nothing is imported; move the module elsewhere')
        for where, path in named(config)
        if any(Path(file).resolve().is_relative_to(whole) for file in _files(path.partition(":")[0]))
    ]


def _files(module: str) -> Iterator[str]:
    """The files and folders of a module and of the packages around it, found without importing any of them."""
    root, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(root)
        while spec is not None:
            within = list(spec.submodule_search_locations or ())
            yield from (spec.origin, *within) if spec.origin else within
            if not parts or not within:
                return
            spec = importlib.machinery.PathFinder.find_spec(f"{spec.name}.{parts.pop(0)}", within)
    except (ImportError, ValueError):
        return  # importing it fails too, and says why
