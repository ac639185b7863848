"""Checkpoints: folders that are written atomically.

An adapter is in peft's own format, so that other programs can load it; weights that were trained themselves are by the
names that the model has for them in memory. Beside them is the state needed to resume.
"""

import importlib
import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ...errors import InputError
from ...files import moved_aside, new_folder
from .model import LocalModel
from .optimizer import GRADIENT, STATE

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["read", "write"]

_ADAPTER: Final = "adapter_model.safetensors"
_WEIGHTS: Final = "weights.safetensors"
_TRAINING: Final = "training.safetensors"
_ABOUT: Final = "client.json"
_FORM: Final = 1
_LONG: Final = ("weights", "layers")
"""What messages name without its value."""


def write(model: LocalModel, folder: Path, training: "Mapping[str, Tensor]", overwrite: bool) -> None:
    """Write what is trained and the training state to a folder that appears when everything is on disk."""
    safetensors: Any = importlib.import_module("safetensors.torch")
    if folder.exists() and not overwrite:
        raise InputError(f"save_state: {folder} exists; use another name, or overwrite=True")
    with new_folder(folder, overwrite=overwrite) as part:
        trained = {_file_name(model, name): one for name, one in model.saved.items()}
        for name, tensors in ((_file(model), trained), (_TRAINING, training)):
            safetensors.save_file({key: one.detach().cpu().contiguous() for key, one in tensors.items()}, part / name)
        if model.options.lora:
            model.model.peft_config["default"].save_pretrained(str(part))
        (part / _ABOUT).write_text(json.dumps({"form": _FORM, **_about(model)}, indent=2) + "\n")
        # Some versions of safetensors write files that only their owner can read.
        mode = (part / _ABOUT).stat().st_mode
        for path in part.iterdir():
            path.chmod(mode)


def read(function: str, model: LocalModel, folder: Path) -> "tuple[dict[str, Tensor], dict[str, Tensor]]":
    """The trained weights by name, and the training state, checked to belong to this model."""
    safetensors: Any = importlib.import_module("safetensors.torch")
    folder = moved_aside(folder) or folder
    if not (folder / _ABOUT).is_file():
        there = "has no client.json" if folder.is_dir() else "does not exist"
        raise InputError(f"{function}: {folder} {there}; expected a path that save_state returned")
    try:
        found = json.loads((folder / _ABOUT).read_text())
    except Exception as error:
        raise InputError(f"{function}: {folder} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{function}: {folder} cannot be read: {_ABOUT} is not a JSON object")
    about = cast("dict[str, Any]", found)
    own = {"form": _FORM, **_about(model)}
    different = [key for key in {**own, **about} if key != "model" and about.get(key) != own.get(key)]
    if different:
        details = [key if key in _LONG else f"{key} ({about.get(key)}, not {own.get(key)})" for key in different]
        raise InputError(
            f'{function}: {folder} was saved by another model, "{about.get("model")}", not "{own["model"]}": they '
            f"differ in {', '.join(details)}; create the client as it was when it saved"
        )
    try:
        trained, training = (safetensors.load_file(folder / name) for name in (_file(model), _TRAINING))
    except Exception as error:
        raise InputError(f"{function}: {folder} cannot be read: {error}") from error
    lacks = next(_lacking(model, trained, training), None)
    if lacks is not None:
        raise InputError(f"{function}: {folder} cannot be read: it has no {lacks}, or one of another shape")
    return {name: trained[_file_name(model, name)] for name in model.saved}, training


def _lacking(
    model: LocalModel, trained: "Mapping[str, Tensor]", training: "Mapping[str, Tensor]"
) -> Generator[str, None, None]:
    """The tensors that are missing, or are not as `write` writes them."""
    import torch

    for name, one in model.saved.items():
        stored = trained.get(_file_name(model, name))
        if stored is None or stored.shape != one.shape:
            yield _file_name(model, name)
    for name, one in model.parameters.items():
        # A parameter without a step has no moments either, and gradients may not be accumulated. The moments of
        # bitsandbytes have other names, and shapes that are its own business.
        begun = f"state1/{name}" not in training and any(f"{kind}/{name}" in training for kind in STATE)
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
    about: dict[str, Any] = {"model": model.name, "weights": model.fingerprint}
    options = model.options
    if not options.lora:
        return about | {"adapter": options.adapter}
    layers = sorted({_peft_name(name).rpartition(".lora_")[0] for name in model.parameters if ".lora_" in name})
    about |= {"rank": options.rank, "alpha": options.alpha, "layers": layers}
    # Those that were not used are left out.
    more = {"rslora": options.rslora, "modules_to_save": sorted(options.modules_to_save), "quantize": options.quantize}
    return about | {key: value for key, value in more.items() if value}


def _file(model: LocalModel) -> str:
    return _ADAPTER if model.options.lora else _WEIGHTS


def _file_name(model: LocalModel, name: str) -> str:
    return _peft_name(name) if model.options.lora else name


def _peft_name(name: str) -> str:
    """The name of a parameter in peft's files, which omit the name of the adapter and that a module is a copy."""
    before, _, after = name.rpartition(".default")
    return (before + after).replace(".modules_to_save.", ".")
