"""The files of a recorded call: JSON and safetensors, and nothing that is executed when it is read."""

import dataclasses
import functools
import json
import platform
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ... import trees
from ...arrays import Logits, is_array
from ...backends import owner
from ...errors import InputError, NonFiniteError, PenaltiesError, TermError, said
from ...files import new_folder, read_plain
from ..inputs import INPUT, CallInputs
from ..kinds import is_dense, is_mapping, is_row
from ..saving import pack_state, unpack_state
from ..targets import Gradients

if TYPE_CHECKING:
    from ..pipeline import Pipeline
    from ..runner import Runner

__all__ = ["Call", "Recorded", "load", "store"]

_VERSION: Final = 1
_ABOUT: Final = "call.json"
_REST: Final = "state.safetensors"
_ERROR: Final = "error.txt"
_SETTINGS: Final = ("max_workers", "timeout", "sequential")
_LOGITS: Final = "penalties.Logits"
"""The key of a mapping that stands for `Logits`."""


class Call(NamedTuple):
    """What a pipeline was called with."""

    pipeline: "Pipeline"
    inputs: CallInputs
    runner: "Runner"
    weights: Mapping[str, Any] | None
    step: Any
    state: Mapping[str, Any] | None
    gradients: Gradients | None


class Recorded(NamedTuple):
    """What a recorded call was made with."""

    config: list[dict[str, Any]] | None
    """That of the pipeline; None where it has none."""
    no_config: str
    """Why."""
    inputs: dict[str, Any]
    alone: bool
    left_out: dict[str, str]
    """The inputs that could not be written, with the reasons."""
    weights: dict[str, Any] | None
    step: Any
    state: dict[str, Any] | None
    gradients: Gradients | None
    executor: dict[str, Any] | None
    """The arguments of the executor that made the call."""


def store(error: TermError | NonFiniteError, call: Call, path: Path, max_bytes: int) -> Path:
    """Write a call to a new folder."""
    read = _read(call)
    _check_size(
        sum(array.nbytes for array in trees.arrays([read, dict(call.state or {})]) if is_dense(array)), max_bytes
    )
    files: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    trained: dict[str, list[bool]] = {}
    for index, (name, value) in enumerate(read.items()):
        try:
            files[_file(index)] = pack_state({"value": _packable(value)})
        except TermError as problem:
            left_out[name] = str(problem)
        trained[name] = [bool(getattr(array, "requires_grad", False)) for array in trees.arrays(value)]
    rest = {"weights": call.weights, "step": call.step, "state": call.state}
    files[_REST] = pack_state(cast("dict[str, Any]", _packable(rest)))
    # Strings and lists, too.
    _check_size(sum(map(len, files.values())), max_bytes)
    config, no_config = _config(call)
    about = {
        "version": _VERSION,
        "error": {"kind": type(error).__name__, "term": error.term, "message": str(error)},
        "step": None if call.step is None else int(call.step),
        "pipeline": config,
        "no_pipeline": no_config,
        "inputs": list(read),
        "alone": call.inputs.alone,
        "left_out": left_out,
        "requires_grad": trained,
        "gradients": None if call.gradients is None else dataclasses.asdict(call.gradients),
        "executor": getattr(call.runner, "settings", None),
        "versions": _versions(),
    }
    with new_folder(path) as part:
        for name, data in files.items():
            (part / name).write_bytes(data)
        (part / _ABOUT).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
        (part / _ERROR).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return path


def load(path: Path, device: Any = None) -> Recorded:
    """The call in a folder; an `InputError` says what is wrong with it."""
    try:
        about = json.loads(read_plain(path / _ABOUT))
        if about["version"] != _VERSION:
            raise InputError(f"replay: {path} has version {about['version']}; this library reads {_VERSION}")
        rest = unpack_state(read_plain(path / _REST), str(path / _REST), device=device)
        inputs: dict[str, Any] = {}
        for index, name in enumerate(about["inputs"]):
            if name not in about["left_out"]:
                file = path / _file(index)
                value = _unpacked(unpack_state(read_plain(file), str(file), device=device)["value"])
                inputs[name] = trees.map_arrays(functools.partial(_trained, iter(about["requires_grad"][name])), value)
        gradients = about["gradients"]
        return Recorded(
            about["pipeline"],
            about["no_pipeline"],
            inputs,
            about["alone"],
            about["left_out"],
            rest["weights"],
            rest["step"],
            rest["state"],
            None if gradients is None else Gradients(**gradients),
            None if about["executor"] is None else {key: about["executor"][key] for key in _SETTINGS},
        )
    except PenaltiesError:
        raise
    except Exception as error:
        raise InputError(f"replay: {path} is not the folder of a recorded call ({said(error)})") from error


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise InputError(f"its inputs and state take {size} bytes; recording(max_bytes={most})")


def _file(index: int) -> str:
    return f"input-{index}.safetensors"


def _read(call: Call) -> dict[str, Any]:
    """The inputs that a term reads; others may be there for other calls, and of any kind."""
    inputs: CallInputs = call.inputs
    if inputs.alone:
        return {INPUT: inputs.named[INPUT]}
    names = [name for term in call.pipeline.all_terms for name in term.inputs.values()]
    return {root: value for root, value in inputs.named.items() if any(inputs.lies_in(name, root) for name in names)}


def _config(call: Call) -> tuple[list[dict[str, Any]] | None, str]:
    try:
        config = call.pipeline.to_config()
        # What is not JSON, as an array among the options, would be something else when it is read.
        if json.loads(json.dumps(config)) != config:
            return None, "an option holds something other than numbers, strings, lists and dicts"
    except (PenaltiesError, TypeError, ValueError) as error:
        return None, said(error)
    return config, ""


def _packable(value: Any) -> Any:
    """The value in lists, tuples and dicts alone, as far as it is a nest."""
    if is_array(value):
        ops = owner(value)
        assert ops is not None, "it is an array"
        # Under a gradient of JAX this is the array itself; inside jit there are no numbers.
        plain = ops.stop_gradient(value)
        if ops.LIBRARY == "JAX" and ops.tracing(plain):
            raise TermError("inputs", "holds an array that a compiler traces, which has no numbers")
        return plain
    if isinstance(value, Logits):
        parts = {"hidden": value.hidden, "weight": value.weight, "bias": value.bias, "softcap": value.softcap}
        return {_LOGITS: _packable(parts)}
    if is_mapping(value) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        keys = list(value.keys())
        return {key: _packable(value[key]) for key in keys}
    if is_row(value):
        parts = [_packable(part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    flat = trees.flatten(value)
    # A list of parameters, or a class that JAX knows, is not made again; the arrays in order are a nest too.
    return tuple(map(_packable, flat.leaves)) if flat.leaves else value


def _unpacked(value: Any) -> Any:
    if is_array(value):
        return value
    if is_mapping(value):
        if list(value) == [_LOGITS]:
            parts: Mapping[str, Any] = value[_LOGITS]
            return Logits(**parts)
        return {key: _unpacked(part) for key, part in value.items()}
    if is_row(value):
        made = [_unpacked(part) for part in value]
        return made if isinstance(value, list) else tuple(made)
    return value


def _trained(required: Iterator[bool], array: Any) -> Any:
    wanted = next(required)
    torch = sys.modules.get("torch")
    return array.requires_grad_(wanted) if torch is not None and isinstance(array, torch.Tensor) else array


def _versions() -> dict[str, str]:
    from ... import __version__

    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in ("numpy", "torch", "jax")}
    return {
        "python": platform.python_version(),
        "penalties": __version__,
        **{name: version for name, version in loaded.items() if version is not None},
    }
