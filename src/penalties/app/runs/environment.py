"""What a run was made with: versions of libraries, the commit of the working directory, and the data it read."""

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from ... import __version__
from ...files import read_plain, write_atomically
from .disk import writing
from .log import now

__all__ = ["ENVIRONMENT", "environment", "environments_in", "write_environment"]

ENVIRONMENT: Final = "environment.json"
_PROCESSES: Final = "processes"
_LIBRARIES: Final = ("torch", "transformers", "peft", "tokenizers", "numpy", "tinker", "ray", "bitsandbytes")
"""Those that change what a run computes."""
_PATIENCE: Final = 5.0
"""Seconds that git may take: the folder may be on a slow disk."""


def environment() -> dict[str, Any]:
    """The versions in this process, and the commit if the working directory is in a repository of git.

    `changed` says whether files that git knows differ from the commit.
    """
    versions = {"python": platform.python_version(), "penalties": __version__}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return {"versions": versions}
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, **({} if status is None else {"changed": bool(status)}), "versions": versions}


def _git(*arguments: str) -> str | None:
    """What git says; None if there is no git, no repository, or no answer in time."""
    # Without locks: somebody may be working there.
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=_PATIENCE, env=quiet, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


def write_environment(folder: Path, step: int, data: Mapping[str, str]) -> None:
    """Add the environment of this process, which begins after so many steps, unless it is that of the last one.

    `data` has a fingerprint for each kind of data.
    """
    found = {**environment(), "data": dict(data)}
    before = environments_in(folder)
    known = {key: value for key, value in before[-1].items() if key not in ("step", "time")} if before else None
    if known == found:
        return
    path = folder / ENVIRONMENT
    text = json.dumps({_PROCESSES: [*before, {"step": step, "time": now(), **found}]}, indent=2)
    with writing(path):
        write_atomically(path, f"{text}\n")


def environments_in(folder: Path) -> list[dict[str, Any]]:
    """The environments of a run, the first one first; none if the file is missing or damaged."""
    try:
        found: Any = json.loads(read_plain(folder / ENVIRONMENT))
    except (OSError, ValueError, RecursionError):
        return []
    listed: Any = cast("Mapping[str, Any]", found).get(_PROCESSES) if isinstance(found, dict) else None
    if not isinstance(listed, list):
        return []
    return [cast("dict[str, Any]", one) for one in cast("Sequence[Any]", listed) if _is_environment(one)]


def _is_environment(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    one = cast("dict[str, Any]", found)
    versions = one.get("versions")
    return (
        isinstance(versions, dict)
        and all(isinstance(version, str) for version in cast("dict[str, Any]", versions).values())
        and isinstance(one.get("step"), int)
        and isinstance(one.get("commit", ""), str)
        and isinstance(one.get("data", {}), dict)
    )
