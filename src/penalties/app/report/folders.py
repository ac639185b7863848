"""The runs in the given folders, and their names."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from ...files import read_plain
from ..runs.disk import RunError

__all__ = ["TOGETHER", "named", "runs_in"]

_RUN: Final = ("metrics.jsonl", "config.json")
TOGETHER: Final = ("ablation.json", "search.json")
"""The files of folders whose runs belong together."""
_SEED: Final = re.compile(r"-seed-\d+$")


def runs_in(folders: Sequence[Path]) -> list[Path]:
    """The folders of runs, each once; the folder of an ablation or a search stands for the runs in it."""
    found: dict[Path, Path] = {}
    for folder in folders:
        for run in _runs(folder):
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _runs(folder: Path) -> list[Path]:
    # That of os.path says no where a name is too long.
    if not os.path.isdir(folder) or _is_run(folder):
        return [folder]
    below = sorted(path for path in folder.iterdir() if path.is_dir() and _is_run(path))
    if not below:
        return [folder]
    together = next((folder / name for name in TOGETHER if (folder / name).is_file()), None)
    if together is None:
        contains, wanted = ("a run", below[0]) if len(below) == 1 else (f"{len(below)} runs", folder / "*")
        raise RunError(f"{folder} is not a run, but contains {contains}; use penalties report {wanted}", 2)
    order = _order(together)
    return sorted(below, key=lambda path: order.index(path.name) if path.name in order else len(order))


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _RUN)


def _order(path: Path) -> list[str]:
    """The folder names in the order of an ablation or a search; empty if its file cannot be read."""
    try:
        entries: Any = json.loads(read_plain(path))["runs"]
        return [str(cast("dict[str, Any]", entry)["folder"]) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def named(folders: Sequence[Path]) -> list[str]:
    """The names of folders, with their parents if needed to tell them apart, and without a seed that all share.

    >>> named([Path("runs/all-seed-0"), Path("runs/without-kl-seed-0")])
    ['all', 'without-kl']
    """
    whole = [folder.resolve().parts for folder in folders]
    length = 1
    while len({parts[-length:] for parts in whole}) < len(whole):
        length += 1
    names = ["/".join(parts[-length:]) for parts in whole]
    seeds = {found[0] if (found := _SEED.search(name)) else "" for name in names}
    shared = seeds.pop() if len(seeds) == 1 and len(names) > 1 else ""
    return [name.removesuffix(shared) for name in names]
