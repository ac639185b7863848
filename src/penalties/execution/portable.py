"""Objects as bytes, with the arrays inside them apart: how inputs and evaluations travel between processes.

What the caller sends may be anything that can be pickled. What a worker sends back is data: arrays, numbers, strings
and containers of these. Reading it calls nothing that the bytes name.
"""

import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np

from ..errors import MissingLibraryError

__all__ = ["CapturedError", "Packed", "dumps", "dumps_data", "function_bytes", "loads", "loads_data"]


class Packed(NamedTuple):
    """An object as bytes, and its arrays in the memory of the host."""

    data: bytes
    arrays: list[np.ndarray[Any, Any]]
    libraries: frozenset[str]
    """Those that the arrays belong to, as `torch` and `jax`."""


class _Kind(NamedTuple):
    """What it takes to make an array again from its memory."""

    library: str
    dtype: str
    """Its name in that library."""
    requires_grad: bool = False


_ATOMS: Final = frozenset((str, int, float, bool, type(None), dict, list, tuple))
"""Most of what a pickler asks about, and never an array."""


class CapturedError(Exception):
    """A tensor that requires a gradient, inside a function that is to run where no gradient can reach it."""


def dumps(value: Any) -> Packed:
    """Pack an object. An array that occurs several times travels once."""
    packing = _Packing()
    try:
        data = packing.plain(value)
    except _NotPlain:
        data = _pickled(value, packing.reference)
    return packing.packed(data)


def dumps_data(value: Any) -> Packed:
    """Pack data; raises `TypeError` where there is anything else."""
    packing = _Packing()
    try:
        return packing.packed(packing.plain(value))
    except _NotPlain as error:
        raise TypeError(
            f"it holds {error}; expected arrays, numbers, strings, bools, None, and lists, tuples and dicts of these"
        ) from None


def loads(data: bytes, arrays: Sequence[Any] = ()) -> Any:
    """The object again, with arrays of the libraries that they came from, in the memory that is given."""
    return _Unpickler(data, arrays).load()


def loads_data(data: bytes, arrays: Sequence[Any] = ()) -> Any:
    """The same for what `dumps_data` packed; raises where the bytes name anything to be called."""
    return _DataUnpickler(data, arrays).load()


class _Packing:
    """The arrays of an object that is being packed."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray[Any, Any]] = []
        self.libraries: set[str] = set()
        self._known: dict[int, tuple[Any, ...]] = {}
        self._kept: list[Any] = []

    def reference(self, part: Any) -> tuple[Any, ...] | None:
        """What stands for an array in the bytes; None for anything else."""
        if id(part) not in self._known:
            found = _as_host_array(part)
            if found is None:
                return None
            array, kind = found
            self._known[id(part)] = (len(self.arrays), *kind, array.dtype.str, array.shape)
            self.arrays.append(array)
            self.libraries.add(kind.library)
            # An id names an object only while that is alive.
            self._kept.append(part)
        return self._known[id(part)]

    def plain(self, value: Any) -> bytes:
        """The bytes of an object that is data."""
        buffer = io.BytesIO()
        _PlainPickler(buffer, self.reference).dump(value)
        return buffer.getvalue()

    def packed(self, data: bytes) -> Packed:
        return Packed(data, self.arrays, frozenset(self.libraries))


def function_bytes(value: Any) -> bytes:
    """A function, or an object that holds one, as bytes; lambdas and closures by value.

    Raises `CapturedError` if it holds a tensor that requires a gradient, which would not be trained.
    """

    def reject_trained(part: Any) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(part, torch.Tensor) and part.requires_grad:
            raise CapturedError(f"a tensor of shape {tuple(part.shape)}")

    return _pickled(value, reject_trained)


def _pickled(value: Any, reference: Callable[[Any], tuple[Any, ...] | None]) -> bytes:
    buffer = io.BytesIO()
    _pickler_class()(buffer, reference).dump(value)
    return buffer.getvalue()


class _NotPlain(Exception):
    """The object holds something that is not data, and may have to travel by value."""


class _PlainPickler(pickle.Pickler):
    """For containers, numbers and arrays, which most of what travels is: three times as fast as cloudpickle's."""

    def __init__(self, buffer: io.BytesIO, reference: Callable[[Any], tuple[Any, ...] | None]) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.reference = reference

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        return None if type(obj) in _ATOMS else self.reference(obj)

    def reducer_override(self, obj: Any) -> Any:
        raise _NotPlain(f"an object of class {type(obj).__qualname__}")


@functools.cache
def _pickler_class() -> Any:
    try:
        module: Any = importlib.import_module("cloudpickle")
    except ImportError as error:
        raise MissingLibraryError("a term that runs elsewhere", "cloudpickle", extra="process") from error

    class Pickler(module.Pickler):
        def __init__(self, buffer: io.BytesIO, reference: Callable[[Any], tuple[Any, ...] | None]) -> None:
            module.Pickler.__init__(self, buffer, protocol=pickle.HIGHEST_PROTOCOL)
            self.reference = reference

        def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
            return self.reference(obj)

        def reducer_override(self, obj: Any) -> Any:
            # Functions of a script travel by value; of a cached one cloudpickle would send the name alone.
            if isinstance(obj, _CACHED) and obj.__module__ == "__main__":
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            return module.Pickler.reducer_override(self, obj)

    return Pickler


_CACHED: Final[type[Any]] = type(functools.lru_cache(lambda: None))


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """A cached function whose cache is empty."""
    return functools.lru_cache(**parameters)(function)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arrays: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self.arrays = arrays
        self.made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        index, library, dtype, requires_grad, host_dtype, shape = pid
        if index not in self.made:
            host = np.asarray(self.arrays[index]).view(host_dtype).reshape(shape)
            self.made[index] = _from_host_array(host, _Kind(library, dtype, requires_grad))
        return self.made[index]


class _DataUnpickler(_Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}; expected data alone")


def _as_host_array(part: Any) -> tuple[np.ndarray[Any, Any], _Kind] | None:
    """An array as one of NumPy's; None for anything else, and for arrays that only their library can pickle."""
    if type(part) is np.ndarray or isinstance(part, np.generic):
        array: np.ndarray[Any, Any] = np.asarray(cast("Any", part))
        if array.dtype.hasobject or array.dtype.names or array.dtype.kind == "T":
            return None
        library = "numpy" if isinstance(part, np.ndarray) else "numpy scalar"
        return _as_builtin(array), _Kind(library, _dtype_name(array))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(part, torch.Tensor):
        tensor: Any = part
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            return None
        dtype = str(tensor.dtype).removeprefix("torch.")
        host: Any = tensor.detach().cpu().resolve_conj().resolve_neg()
        if tensor.dtype is torch.bfloat16:
            host = host.view(torch.int16)
        elif "float8" in dtype:
            host = host.view(torch.uint8)
        return host.numpy(), _Kind("torch", dtype, tensor.requires_grad)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(part, jax.Array):
        if jax.dtypes.issubdtype(part.dtype, jax.dtypes.prng_key):
            impl = _key_kind(part)
            return None if impl is None else (np.asarray(jax.random.key_data(part)), _Kind("jax key", impl))
        array = np.asarray(part)
        return _as_builtin(array), _Kind("jax", _dtype_name(array))
    return None


def _as_builtin(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory under a dtype of NumPy's own: those of `ml_dtypes`, as bfloat16, are additions to it."""
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.isbuiltin == 2 else array


def _dtype_name(array: np.ndarray[Any, Any]) -> str:
    return array.dtype.name if array.dtype.isbuiltin == 2 else array.dtype.str


def _key_kind(key: Any) -> str | None:
    random = sys.modules["jax"].random
    kinds = ("threefry2x32", "rbg", "unsafe_rbg")
    return next((kind for kind in kinds if random.key(0, impl=kind).dtype == key.dtype), None)


def _from_host_array(host: np.ndarray[Any, Any], kind: _Kind) -> Any:
    if kind.library == "torch":
        import torch

        module: Any = torch
        tensor: Any = module.from_numpy(host)
        if str(tensor.dtype) != f"torch.{kind.dtype}":
            tensor = tensor.view(getattr(torch, kind.dtype))
        return tensor.requires_grad_(kind.requires_grad)
    if kind.library == "jax key":
        return importlib.import_module("jax.random").wrap_key_data(host, impl=kind.dtype)
    if host.dtype.str != kind.dtype:
        host = host.view(getattr(importlib.import_module("ml_dtypes"), kind.dtype))
    if kind.library == "jax":
        return importlib.import_module("jax.numpy").asarray(host)
    return host[()] if kind.library == "numpy scalar" else host
