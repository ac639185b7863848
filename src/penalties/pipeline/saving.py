"""The state of a pipeline on disk: one safetensors file, and nothing in it that is executed."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np

from ..backends import owner
from ..errors import InputError, MissingLibraryError, OptionError, PenaltiesError, TermError, said
from ..files import write_atomically
from .kinds import described, is_dense, is_mapping, is_row

__all__ = ["load_state", "pack_state", "save_state", "unpack_state"]

_METADATA: Final = "penalties"
_VERSION: Final = 1

_LIBRARIES: Final = {"NumPy": "numpy", "PyTorch": "torch", "JAX": "jax"}
"""The word for each library in a file and in `load_state`."""

_DTYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64"),
)
"""Dtypes that NumPy and safetensors have in common."""
_NARROW: Final = ("bfloat16", "float8_", "float6_", "float4_", "int2", "int4", "uint2", "uint4")
"""What dtypes of other libraries begin with whose numbers are all in float32."""


def save_state(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the state of a pipeline to one safetensors file: its arrays, and the rest as JSON in the file's header.

    The state may hold arrays, numbers, strings, booleans, None, and lists, tuples and dicts of them. The file appears
    whole or not at all.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import penalties as pn
    >>> out = pn.Pipeline([pn.EMA(pn.Term(pn.l1))])(np.array([1.0, -2.0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pn.save_state(out.state, Path(folder) / "state.safetensors")
    ...     pn.load_state(Path(folder) / "state.safetensors")
    {'l1': {'before': array(3.), 'inner': None}}
    """
    write_atomically(path, pack_state(state))


def pack_state(state: Mapping[str, Any]) -> bytes:
    """The content of the file that `save_state` writes, for checkpoints of other people's trainers."""
    if not is_mapping(cast("Any", state)):
        raise OptionError("save_state", "state", state, "the state of an output, as out.state, and then the path")
    safetensors = _safetensors()
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    structure = _packed("state", dict(state), arrays)
    header = {_METADATA: json.dumps({"version": _VERSION, "state": structure})}
    return safetensors.save(arrays, metadata=header)


def load_state(
    path: str | os.PathLike[str], library: Literal["numpy", "torch", "jax"] | None = None, device: Any = None
) -> dict[str, Any]:
    """The state that `save_state` wrote, with arrays of the library that they were saved from.

    `library` loads all of them into another library. `device` says where the arrays of PyTorch and JAX go.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import torch
    >>> import penalties as pn
    >>> path = Path(tempfile.mkdtemp(), "state.safetensors")
    >>> pn.save_state({"mean": {"before": torch.tensor(3.0)}}, path)
    >>> pn.load_state(path)
    {'mean': {'before': tensor(3.)}}
    >>> pn.load_state(path, library="numpy")
    {'mean': {'before': array(3., dtype=float32)}}
    """
    if library is not None and library not in _LIBRARIES.values():
        raise OptionError("load_state", "library", library, 'None, "numpy", "torch" or "jax"')
    if library == "numpy" and device is not None:
        raise OptionError("load_state", "device", device, "None: NumPy has no devices")
    return unpack_state(Path(path).read_bytes(), str(path), library, device)


def unpack_state(
    data: bytes, source: str, library: Literal["numpy", "torch", "jax"] | None = None, device: Any = None
) -> dict[str, Any]:
    """The state that `pack_state` packed; errors name its source."""
    safetensors = _safetensors()
    try:
        arrays = safetensors.load(data)
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        content = json.loads(header["__metadata__"][_METADATA])
        version, state = content["version"], content["state"]
    except Exception as error:
        raise _foreign(source, error) from error
    if version != _VERSION:
        raise InputError(f"load_state: {source} has version {version}; this library reads {_VERSION}")

    def made(packed: Mapping[str, Any]) -> Any:
        # Files of older versions do not say the library.
        chosen = library or packed.get("library", "numpy")
        return _array(arrays[packed["array"]], chosen, packed.get("dtype"), device)

    try:
        return _unpacked(state, made)
    except PenaltiesError:
        raise
    except Exception as error:
        raise _foreign(source, error) from error


def _foreign(source: str, error: Exception) -> InputError:
    return InputError(f"load_state: {source} was not written by save_state ({said(error)})")


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise MissingLibraryError("saving the state of terms", "safetensors", extra="state") from error
    return safetensors.numpy


def _packed(where: str, value: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """JSON for a state; arrays go to `arrays`, and leave behind what it takes to make them again."""
    ops = owner(value)
    if ops is not None:
        name = str(len(arrays))
        dtype: str = getattr(value.dtype, "name", None) or str(value.dtype).rpartition(".")[2]
        arrays[name] = _numbers(where, value, dtype)
        # What NumPy does not have, such as bfloat16, is written wider and made narrow again.
        narrow = {} if dtype in _DTYPES else {"dtype": dtype}
        return {"array": name, "library": _LIBRARIES[ops.LIBRARY], **narrow}
    if value is None or isinstance(value, str | bool | int | float):
        return {"value": repr(value) if isinstance(value, float) else value, "float": isinstance(value, float)}
    if is_mapping(value):
        for key in value:
            if not isinstance(key, str):
                raise TermError(where, f"has the key {key!r}; keys must be strings to be saved")
        return {"dict": {key: _packed(f"{where}.{key}", part, arrays) for key, part in value.items()}}
    if is_row(value):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_packed(f"{where}[{i}]", part, arrays) for i, part in enumerate(value)]}
    raise TermError(
        where, f"holds {described(value)}; state is saved as arrays, numbers, strings, lists, tuples and dicts of them"
    )


def _numbers(where: str, array: Any, dtype: str) -> "np.ndarray[Any, Any]":
    """The elements of an array, in its dtype, or in float32 for a narrower one that NumPy does not have."""
    torch = sys.modules.get("torch")
    narrow = dtype.startswith(_NARROW)
    if not is_dense(array) or not (narrow or dtype in _DTYPES):
        which = dtype if is_dense(array) else "sparse, masked, quantized or nested elements"
        raise TermError(where, f"holds {described(array)} of {which}; expected numbers of at most 64 bits")
    if torch is not None and isinstance(array, torch.Tensor):
        tensor: Any = array.detach().cpu().resolve_conj().resolve_neg()
        array = (tensor.float() if narrow else tensor).numpy()
    return np.array(array, dtype="float32" if narrow else dtype, order="C")


def _unpacked(packed: Mapping[str, Any], made: Callable[[Mapping[str, Any]], Any]) -> Any:
    if "array" in packed:
        return made(packed)
    if "value" in packed:
        return float(packed["value"]) if packed["float"] else packed["value"]
    if "dict" in packed:
        return {key: _unpacked(part, made) for key, part in packed["dict"].items()}
    if "list" in packed:
        return [_unpacked(part, made) for part in packed["list"]]
    return tuple(_unpacked(part, made) for part in packed["tuple"])


def _array(array: np.ndarray[Any, Any], library: str, dtype: str | None, device: Any) -> Any:
    """An array of this library, of the dtype that it had where the library knows it."""
    if library == "numpy":
        return array
    try:
        found = importlib.import_module(library)
    except ImportError as error:
        what = f'loading {library} arrays (without it: library="numpy")'
        raise MissingLibraryError(what, library, extra=library) from error
    if library == "torch":
        return found.as_tensor(array, device=device, dtype=None if dtype is None else getattr(found, dtype, None))
    put = found.device_put(array, device=device)
    known = dtype is not None and hasattr(found.numpy, dtype)
    return put.astype(dtype) if known else put
