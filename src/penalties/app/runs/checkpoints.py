"""Checkpoints of a run: the model, the state of the terms, and the size of the log; each complete, or absent.

checkpoints/000020/
├── client/               what a client in this process saved; a server keeps its own, by name
├── state.safetensors     the state of the terms, if there is any
└── checkpoint.json       the step, the size of the log, what else resuming needs, and the checksum of every file
"""

import contextlib
import errno
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...files import check_plain, new_folder, open_plain, write_atomically
from ...pipeline.saving import load_state, save_state
from ...trees import map_arrays
from ..problems import counted, joined
from .disk import RunError, discard, read_object, reason, writing
from .run import Run

if TYPE_CHECKING:
    from .about import About

__all__ = ["Checkpoint", "commit", "find", "latest"]

_ABOUT: Final = "checkpoint.json"
_CLIENT: Final = "client"
_STATE: Final = "state.safetensors"
_VERSION: Final = 2
_CHECKSUM: Final = "checksum"
_BEST: Final = "best"
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
    best: int | None
    """The step of the best checkpoint up to this one."""

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
    *,
    keep: int = _KEPT,
    best: int | None = None,
) -> None:
    """Write a checkpoint, which exists once all of it is on the disk.

    `save_client(folder, name)` saves the model, in that folder or elsewhere by that name, and returns the path to load
    it from. `announce` writes to the log; if the rest fails, the log is cut back. `best` is the step of the best
    checkpoint so far. Then older ones are removed, except for the last `keep` and the best of each of these: a run that
    is resumed from one of them finds the best that it knew.
    """
    name = f"{step:06d}"
    folder = run.checkpoints / name
    size = run.log.size
    with writing(folder):
        # A checkpoint of this name is damaged: otherwise the run would have resumed from it.
        discard(folder)
        try:
            with new_folder(folder) as part:
                client = save_client(part / _CLIENT, f"step-{name}")
                # A relative path: the folder may be moved.
                if Path(client).resolve() == (part / _CLIENT).resolve():
                    client = _CLIENT
                if state:
                    save_state(state, part / _STATE)
                announce()
                run.log.sync()
                about: dict[str, Any] = {
                    "version": _VERSION,
                    "files": _checksums(part),
                    "step": step,
                    "client": client,
                    "log_size": run.log.size,
                    "has_state": bool(state),
                    _BEST: best,
                    "notes": notes,
                }
                about[_CHECKSUM] = _checksum_of(about)
                write_atomically(part / _ABOUT, (json.dumps(about, indent=2) + "\n"))
        except BaseException:
            # An interruption may come when the checkpoint is there already.
            if not folder.is_dir():
                with contextlib.suppress(OSError):
                    run.log.cut(size)
            raise
    # Later ones are damaged, as above.
    there = sorted(one for one in _folders(run) if one[0] <= step)
    needed = {_best_of(kept) for _, kept in there[-keep:]}
    for number, old in there[:-keep]:
        if number not in needed:
            discard(old)


def latest(run: Run) -> Checkpoint | None:
    """The last complete checkpoint of a run; None if there is none. An error if none of them can be used."""
    damaged: list[str] = []
    for step, folder in sorted(_folders(run), reverse=True):
        try:
            return _opened(folder, step, damaged)
        except _DamagedError as error:
            damaged.append(str(error))
    if damaged:
        raise RunError(
            f"no checkpoint can be used ({'; '.join(damaged)}); restore one, or start again in another folder"
        )
    return None


def find(run: Run, which: str | int | None = None) -> Checkpoint:
    """A checkpoint to use: `"best"`, `"last"`, or a number of steps; by default the best if there is one, or the last.

    An error names those that there are.
    """
    last = latest(run)
    if last is None:
        raise RunError(f"{run.folder} has no checkpoint yet; train it until there is one (train.checkpoint_every)", 2)
    if which == _BEST and last.best is None:
        raise RunError(f'{run.folder} has no best checkpoint: set train.best_by, or take "last"', 2)
    step = last.best if which in (None, _BEST) else last.step if which == "last" else which
    if step is None or step == last.step:
        return last
    there = dict(_folders(run))
    if step not in there:
        known = joined((str(one) for one in sorted(there)), "and")
        after = counted(step, "step") if isinstance(step, int) else f'"{step}"'
        raise RunError(f"{run.folder} has no checkpoint after {after}; there are those after {known}", 2)
    try:
        return _opened(there[step], step)
    except _DamagedError as error:
        raise RunError(
            f"the checkpoint after {counted(step, 'step')} cannot be used ({error}); choose another"
        ) from error


class _DamagedError(Exception):
    """A checkpoint that is not as it was written; the one before it may be."""


def _opened(folder: Path, step: int, damaged: Sequence[str] = ()) -> Checkpoint:
    """The checkpoint in a folder; a `_DamagedError` says what is wrong with it."""
    try:
        about = _read(folder, step)
    except FileNotFoundError as error:
        raise _DamagedError(f"{folder}: {Path(error.filename).name} is missing") from error
    except _DamagedError as error:
        raise _DamagedError(f"{folder}: {error}") from error
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTDIR):
            raise RunError(f"{folder} cannot be read: {reason(error)}") from error
        # A link or a folder where a file was, or a file where the folder was.
        raise _DamagedError(f"{error.filename}: {reason(error)}") from error
    client = str((folder / _CLIENT).absolute()) if about.client == _CLIENT else about.client
    stored = folder / _STATE if about.has_state else None
    return Checkpoint(step, client, about.notes, about.log_size, tuple(damaged), stored, about.best)


def _best_of(folder: Path) -> int | None:
    """The step of the best checkpoint that this one knew; None if it cannot be read: nobody will resume from it."""
    with contextlib.suppress(RunError, OSError):
        found = read_object(folder / _ABOUT).get(_BEST)
        return found if isinstance(found, int) else None
    return None


def _read(folder: Path, step: int) -> "About":
    """What a checkpoint says about itself, if every file of it is as it was written."""
    try:
        about = read_object(folder / _ABOUT)
    except RunError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from error
        raise _DamagedError(f"{_ABOUT} cannot be read") from error
    version, checksum = about.get("version"), about.pop(_CHECKSUM, None)
    if version != _VERSION and checksum in (None, _checksum_of(about)):
        raise RunError(f"{folder} has version {version}; this version of penalties reads {_VERSION}")
    if checksum != _checksum_of(about):
        raise _DamagedError(f"{_ABOUT} does not match its checksum")
    from .about import About, wrong

    try:
        said = About.model_validate(about)
    except ValueError as error:
        raise _DamagedError(f"{_ABOUT}: {wrong(error)} is missing or invalid") from error
    if said.step != step:
        raise _DamagedError(f"it is the checkpoint after step {said.step}")
    found = _checksums(folder)
    for name, expected in said.files.items():
        if found.get(name) != expected:
            raise _DamagedError(f"{name} {'does not match its checksum' if name in found else 'is missing'}")
    if said.has_state and _STATE not in said.files:
        raise _DamagedError(f"{_STATE} is missing")
    return said


def _checksums(folder: Path) -> dict[str, str]:
    """The checksum of each file in a checkpoint but the one that has them."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            check_plain(path, folder=True)
        else:
            with open(open_plain(path), "rb") as file:
                found[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, _digest).hexdigest()
    found.pop(_ABOUT, None)
    return found


def _checksum_of(about: Mapping[str, Any]) -> str:
    return _digest(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _digest(data: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(data, digest_size=16)


def _folders(run: Run) -> list[tuple[int, Path]]:
    if not run.checkpoints.is_dir():
        return []
    return [(int(path.name), path) for path in run.checkpoints.iterdir() if path.name.isdecimal()]
