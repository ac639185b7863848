"""Checkpoints: folders that are written atomically.

The adapter is in peft's own format, so that other programs can load it; beside it is the state needed to resume.
"""

import glob
import importlib
import json
import shutil
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ...errors import InputError
from ...files import sync
from .model import LocalModel
from .optimizer import GRADIENT, STATE

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["read", "write"]

_ADAPTER: Final = "adapter_model.safetensors"
_TRAINING: Final = "training.safetensors"
_ABOUT: Final = "client.json"
_FORM: Final = 1


def write(model: LocalModel, folder: Path, training: "Mapping[str, Tensor]", overwrite: bool) -> None:
    """Write the adapter and the training state to a folder that appears when everything is on disk."""
    safetensors: Any = importlib.import_module("safetensors.torch")
    if folder.exists() and not overwrite:
        raise InputError(f"save_state: {folder} exists; use another name, or overwrite=True")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        part.chmod(0o755)
        adapter = {_peft_name(name): one.detach() for name, one in model.parameters.items()}
        for name, tensors in ((_ADAPTER, adapter), (_TRAINING, training)):
            safetensors.save_file({key: one.detach().cpu().contiguous() for key, one in tensors.items()}, part / name)
        model.model.peft_config["default"].save_pretrained(str(part))
        (part / _ABOUT).write_text(json.dumps({"form": _FORM, **_about(model)}, indent=2) + "\n")
        # Some versions of safetensors write files that only their owner can read.
        mode = (part / _ABOUT).stat().st_mode
        for path in part.iterdir():
            path.chmod(mode)
            sync(path)
        sync(part)
        _put(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync(folder.parent)
    for left in _left_behind(folder, "part") + _left_behind(folder, "old"):
        shutil.rmtree(left, ignore_errors=True)


def _put(part: Path, folder: Path) -> None:
    """Rename the finished folder.

    A folder cannot replace another in one step: the old one is moved aside for that moment, where `read` finds it if
    the program is killed just then.
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
    """What a killed program left behind."""
    return sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*.{kind}"))


def read(function: str, model: LocalModel, folder: Path) -> "tuple[dict[str, Tensor], dict[str, Tensor]]":
    """The adapter's parameters by name, and the training state, checked to belong to this model."""
    safetensors: Any = importlib.import_module("safetensors.torch")
    if not folder.exists():
        folder = next(iter(_left_behind(folder, "old")), folder)
    if not (folder / _ABOUT).is_file():
        there = "has no client.json" if folder.is_dir() else "does not exist"
        raise InputError(f"{function}: {folder} {there}; expected a path that save_state returned")
    try:
        found = json.loads((folder / _ABOUT).read_text())
        adapter, training = (safetensors.load_file(folder / name) for name in (_ADAPTER, _TRAINING))
    except Exception as error:
        raise InputError(f"{function}: {folder} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{function}: {folder} cannot be read: {_ABOUT} is not a JSON object")
    about = cast("dict[str, Any]", found)
    own = {"form": _FORM, **_about(model)}
    different = [key for key in own if key != "model" and about.get(key) != own[key]]
    if different:
        details = [
            f"{key} ({about.get(key)}, not {own[key]})" if isinstance(own[key], int) else key for key in different
        ]
        raise InputError(
            f'{function}: {folder} was saved by another model, "{about.get("model")}", not "{own["model"]}": they '
            f"differ in {', '.join(details)}; create the client as it was when it saved"
        )
    lacks = next(_lacking(model, adapter, training), None)
    if lacks is not None:
        raise InputError(f"{function}: {folder} cannot be read: it has no {lacks}, or one of another shape")
    return {name: adapter[_peft_name(name)] for name in model.parameters}, training


def _lacking(
    model: LocalModel, adapter: "Mapping[str, Tensor]", training: "Mapping[str, Tensor]"
) -> Generator[str, None, None]:
    """The tensors that are missing, or are not as `write` writes them."""
    import torch

    for name, one in model.parameters.items():
        stored = adapter.get(_peft_name(name))
        if stored is None or stored.shape != one.shape:
            yield _peft_name(name)
        # A parameter without a step has no moments either, and gradients may not be accumulated.
        begun = any(f"{kind}/{name}" in training for kind in STATE)
        for kind in (*(STATE if begun else ()), *([GRADIENT] if f"{GRADIENT}/{name}" in training else [])):
            stored = training.get(f"{kind}/{name}")
            if stored is None or stored.shape != (() if kind == "step" else one.shape):
                yield f"{kind}/{name}"
    try:
        torch.Generator().set_state(training["generator"])
    except (KeyError, RuntimeError, TypeError):
        yield "generator"
    if "micro_batch_tokens" in training and training["micro_batch_tokens"].shape != ():
        yield "micro_batch_tokens"


def _about(model: LocalModel) -> dict[str, Any]:
    return {
        "model": model.name,
        "weights": model.fingerprint,
        "rank": model.rank,
        "alpha": model.alpha,
        "layers": sorted({_peft_name(name).rpartition(".lora_")[0] for name in model.parameters}),
    }


def _peft_name(name: str) -> str:
    """The name of a parameter in peft's files, which omit the name of the adapter."""
    before, _, after = name.rpartition(".default")
    return before + after
