"""Checkpoints of a run: the model, the state of the terms, and the size of the log; each complete, or absent.

checkpoints/000020/
├── client/               what a client in this process saved; a server keeps its own, by name
├── state.safetensors     the state of the terms, if there is any
└── checkpoint.json       the step, the size of the log, and what else resuming needs
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...errors import said
from ...files import sync, write_atomically
from ...pipeline.saving import load_state, save_state
from ...trees import map_arrays
from .disk import RunError, discard, writing
from .run import Run

__all__ = ["Checkpoint", "commit", "latest"]

_ABOUT: Final = "checkpoint.json"
_CLIENT: Final = "client"
_STATE: Final = "state.safetensors"
_VERSION: Final = 1
_KEPT: Final = 2
"""The last, and the one before it, in case the last is damaged."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a number of steps."""

    step: int
    """Finished steps."""
    client: str
    """What the client loads it from."""
    notes: Mapping[str, Any]
    """Plain data of the training loop."""
    log_size: int
    """Bytes of the log that belong to it."""
    damaged: tuple[str, ...]
    """Later checkpoints that could not be used, each with the reason."""
    stored: Path | None
    """The file of the terms' state."""

    def state(self, device: Any = None) -> dict[str, Any]:
        """The state of the terms, with tensors of PyTorch on this device."""
        found = {} if self.stored is None else load_state(self.stored)
        return map_arrays(lambda array: array.to(device) if hasattr(array, "to") else array, found)


def commit(
    run: Run,
    step: int,
    save_client: Callable[[Path, str], str],
    state: Mapping[str, Any],
    notes: Mapping[str, Any],
    announce: Callable[[], Any],
) -> None:
    """Write a checkpoint, which exists once all of it is on the disk.

    `save_client(folder, name)` saves the model, in that folder or elsewhere by that name, and returns the path to load
    it from. `announce` writes to the log; if the rest fails, the log is cut back.
    """
    name = f"{step:06d}"
    folder = run.checkpoints / name
    part = run.checkpoints.absolute() / f".{name}.part"
    size = run.log.size
    committed = False
    with writing(folder):
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            client = save_client(part / _CLIENT, f"step-{name}")
            # A relative path: the folder may be moved.
            if Path(client).resolve() == (part / _CLIENT).resolve():
                client = _CLIENT
            if state:
                save_state(state, part / _STATE)
            announce()
            run.log.sync()
            files = {
                str(path.relative_to(part)): path.stat().st_size for path in sorted(part.rglob("*")) if path.is_file()
            }
            about = {
                "version": _VERSION,
                "files": files,
                "step": step,
                "client": client,
                "log_size": run.log.size,
                "has_state": bool(state),
                "notes": notes,
            }
            write_atomically(part / _ABOUT, (json.dumps(about, indent=2) + "\n"))
            if state:
                sync(part / _STATE)
                sync(part)
            # A checkpoint of this name is damaged: otherwise the run would have resumed from it.
            discard(folder)
            part.rename(folder)
            committed = True
        except BaseException:
            # An interruption may come between the rename and the next line.
            if not (committed or (folder.is_dir() and not part.is_dir())):
                shutil.rmtree(part, ignore_errors=True)
                with contextlib.suppress(OSError):
                    run.log.cut(size)
            raise
        sync(run.checkpoints)
    for _, old in sorted(_folders(run))[:-_KEPT]:
        discard(old)


def latest(run: Run) -> Checkpoint | None:
    """The last complete checkpoint of a run; None if there is none. An error if none of them can be used."""
    damaged: list[str] = []
    for _, folder in sorted(_folders(run), reverse=True):
        try:
            about = json.loads((folder / _ABOUT).read_bytes())
            version = about["version"]
            if version != _VERSION:
                raise RunError(f"{folder} has version {version}; this version of penalties reads {_VERSION}")
            for name, size in about["files"].items():
                if (found := (folder / name).stat().st_size) != size:
                    raise _DamagedError(f"{name} has {found} bytes; expected {size}")
            client, stored = about["client"], folder / _STATE if about["has_state"] else None
            if client == _CLIENT:
                client = str((folder / client).absolute())
            return Checkpoint(about["step"], client, about["notes"], about["log_size"], tuple(damaged), stored)
        except FileNotFoundError as error:
            damaged.append(f"{folder}: {Path(error.filename).name} is missing")
        except (ValueError, KeyError, TypeError) as error:
            # Not damaged by a killed process, but the one before it may be fine.
            damaged.append(f"{folder}: {_ABOUT} cannot be read ({said(error)})")
        except _DamagedError as error:
            damaged.append(f"{folder}: {error}")
        except OSError as error:
            raise RunError(f"{folder} cannot be read: {said(error)}") from error
    if damaged:
        raise RunError(
            f"no checkpoint can be used ({'; '.join(damaged)}); restore one, or start again in another folder"
        )
    return None


class _DamagedError(Exception):
    """A checkpoint whose files have changed."""


def _folders(run: Run) -> list[tuple[int, Path]]:
    if not run.checkpoints.is_dir():
        return []
    return [(int(path.name), path) for path in run.checkpoints.iterdir() if path.name.isdecimal()]
