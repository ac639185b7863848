"""Checkpoints on disk: a folder that is there whole or not at all.

The adapter lies in it in peft's own form, so that others can load it; beside it lies what going on needs.
"""

import glob
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...errors import InputError
from .model import LocalModel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["read", "write"]

_ADAPTER: Final = "adapter_model.safetensors"
_TRAINING: Final = "training.safetensors"
_ABOUT: Final = "client.json"
_FORM: Final = 1


def write(model: LocalModel, folder: Path, training: "Mapping[str, Tensor]", overwrite: bool) -> None:
    """The adapter and what going on needs, in a folder that appears under its name when all is on the disk."""
    safetensors: Any = importlib.import_module("safetensors.torch")
    if folder.exists() and not overwrite:
        raise InputError(f"save_state: {folder} is there already; give another name, or overwrite=True")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        part.chmod(0o755)
        adapter = {_peft_name(name): one.detach() for name, one in model.parameters.items()}
        for name, tensors in ((_ADAPTER, adapter), (_TRAINING, training)):
            safetensors.save_file({key: one.detach().cpu().contiguous() for key, one in tensors.items()}, part / name)
        model.model.peft_config["default"].save_pretrained(str(part))
        (part / _ABOUT).write_text(json.dumps({"form": _FORM, **_about(model)}, indent=2) + "\n")
        for path in part.iterdir():
            _sync(path)
        _sync(part)
        _put(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _sync(folder.parent)
    for left in _left_behind(folder, "part") + _left_behind(folder, "old"):
        shutil.rmtree(left, ignore_errors=True)


def _put(part: Path, folder: Path) -> None:
    """Give a folder its name.

    One cannot take the place of another in one step: the old one is put aside for that moment, where `read` finds it
    if the program ends just then.
    """
    old = part.with_suffix(".old")
    if folder.exists():
        folder.rename(old)
    try:
        part.rename(folder)
    except BaseException:
        if old.exists():
            old.rename(folder)
        raise


def _left_behind(folder: Path, kind: str) -> list[Path]:
    """What a program that was killed while it saved left of it."""
    return sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*.{kind}"))


def read(function: str, model: LocalModel, folder: Path) -> "tuple[dict[str, Tensor], dict[str, Tensor]]":
    """The adapter's parameters by their names, and what going on needs: of the same model, and all there."""
    safetensors: Any = importlib.import_module("safetensors.torch")
    if not folder.exists():
        folder = next(iter(_left_behind(folder, "old")), folder)
    if not (folder / _ABOUT).is_file():
        there = "has no client.json" if folder.is_dir() else "does not exist"
        raise InputError(f"{function}: {folder} {there}; expected the path that save_state gave")
    try:
        about: dict[str, Any] = json.loads((folder / _ABOUT).read_text())
        adapter, training = (safetensors.load_file(folder / name) for name in (_ADAPTER, _TRAINING))
    except Exception as error:
        raise InputError(f"{function}: {folder} cannot be read: {error}") from error
    own = {"form": _FORM, **_about(model)}
    different = [key for key in own if key != "model" and about.get(key) != own[key]]
    if different:
        told = [f"{key} ({about.get(key)}, not {own[key]})" if isinstance(own[key], int) else key for key in different]
        raise InputError(
            f'{function}: {folder} is of another model, "{about.get("model")}", and this client of "{own["model"]}": '
            f"different are {', '.join(told)}; make a client as it was when it saved"
        )
    return {name: adapter[_peft_name(name)] for name in model.parameters}, training


def _about(model: LocalModel) -> dict[str, Any]:
    return {
        "model": model.name,
        "weights": model.fingerprint,
        "rank": model.rank,
        "alpha": model.alpha,
        "layers": sorted({_peft_name(name).rpartition(".lora_")[0] for name in model.parameters}),
    }


def _peft_name(name: str) -> str:
    """The name of a parameter in peft's files, which do not name the adapter."""
    before, _, after = name.rpartition(".default")
    return before + after


def _sync(path: Path) -> None:
    """Wait until it is on the disk."""
    # Windows opens no folders, and waits for no file that cannot be written.
    with suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
