"""Checkpoints of a run: the model, the state of the terms, and the size of the log; each complete, or absent.

checkpoints/000020/
├── client/               what a client in this process saved; a server keeps its own, by name
├── state.safetensors     the state of the terms, if there is any
└── checkpoint.json       the step, the size of the log, and what else resuming needs
"""

import contextlib
import importlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from ...backends import owner
from ...errors import said
from ...files import sync, write_atomically
from ...pipeline.saving import load_state, save_state
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
    arrays: Sequence[Sequence[str]]
    """The library and the dtype of each array in it."""

    def state(self, device: Any = None) -> dict[str, Any]:
        """The state of the terms, with tensors on this device."""
        if self.stored is None:
            return {}
        return _restored(load_state(self.stored, "numpy"), iter(self.arrays), device)


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
            arrays = list(_arrays(state))
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
                "arrays": [_kind(array) for array in arrays],
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
            _check_files(folder, about["files"])
            client, stored = about["client"], folder / _STATE if about["has_state"] else None
            if client == _CLIENT:
                client = str((folder / client).absolute())
            return Checkpoint(
                about["step"], client, about["notes"], about["log_size"], tuple(damaged), stored, about["arrays"]
            )
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


def _check_files(folder: Path, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        found = (folder / name).stat().st_size
        if found != size:
            raise _DamagedError(f"{name} has {found} bytes; expected {size}")


def _folders(run: Run) -> list[tuple[int, Path]]:
    if not run.checkpoints.is_dir():
        return []
    return [(int(path.name), path) for path in run.checkpoints.iterdir() if path.name.isdecimal()]


# The arrays of a state: the file does not say which library they came from.


def _arrays(state: Any) -> Iterator[Any]:
    """The arrays in a state, in its order."""
    if owner(state) is not None:
        yield state
    elif isinstance(state, Mapping):
        for part in cast("Mapping[str, Any]", state).values():
            yield from _arrays(part)
    elif isinstance(state, list | tuple):
        for part in cast("list[Any]", state):
            yield from _arrays(part)


def _kind(array: Any) -> list[str]:
    """The library and the dtype of an array."""
    ops = owner(array)
    assert ops is not None, "it is an array"
    return [ops.LIBRARY, str(array.dtype).rpartition(".")[2]]


def _restored(state: Any, kinds: Iterator[Sequence[str]], device: Any) -> Any:
    """A state of NumPy arrays, with each array converted to its library."""
    if owner(state) is not None:
        library, dtype = next(kinds)
        return _made(state, library, dtype, device)
    if isinstance(state, dict):
        return {key: _restored(part, kinds, device) for key, part in cast("dict[str, Any]", state).items()}
    if isinstance(state, list | tuple):
        parts = [_restored(part, kinds, device) for part in cast("list[Any]", state)]
        return parts if isinstance(state, list) else tuple(parts)
    return state


def _made(array: Any, library: str, dtype: str, device: Any) -> Any:
    if library == "PyTorch":
        import torch

        return torch.as_tensor(array, dtype=getattr(torch, dtype), device=device)
    if library == "JAX":
        return importlib.import_module("jax").numpy.asarray(array, dtype=dtype)
    return array
