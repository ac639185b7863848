"""Objects as bytes, with the arrays inside them apart: how inputs and evaluations travel between processes."""

import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ..errors import MissingLibraryError

__all__ = ["CapturedError", "Packed", "dumps", "function_bytes", "loads"]


class Packed(NamedTuple):
    """An object as bytes, and its arrays in the memory of the host."""

    data: bytes
    arrays: list[np.ndarray[Any, Any]]
    libraries: frozenset[str]
    """Those that the arrays belong to: `numpy`, `torch`, `jax`."""


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
    arrays: list[np.ndarray[Any, Any]] = []
    known: dict[int, tuple[Any, ...]] = {}
    kept: list[Any] = []
    libraries: set[str] = set()

    def reference(part: Any) -> tuple[Any, ...] | None:
        if id(part) not in known:
            found = _as_host_array(part)
            if found is None:
                return None
            array, kind = found
            known[id(part)] = (len(arrays), *kind, array.dtype.str, array.shape)
            arrays.append(array)
            libraries.add(kind.library)
            # An id names an object only while that is alive.
            kept.append(part)
        return known[id(part)]

    buffer = io.BytesIO()
    try:
        _PlainPickler(buffer, reference).dump(value)
    except _NotPlain:
        return Packed(_pickled(value, reference), arrays, frozenset(libraries))
    return Packed(buffer.getvalue(), arrays, frozenset(libraries))


def loads(data: bytes, arrays: Sequence[Any] = ()) -> Any:
    """The object again, with arrays of the libraries that they came from, in the memory that is given."""
    return _Unpickler(data, arrays).load()


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
    """The object holds something that may have to travel by value."""


class _PlainPickler(pickle.Pickler):
    """For containers, numbers and arrays, which most of what travels is: three times as fast as cloudpickle's."""

    def __init__(self, buffer: io.BytesIO, reference: Callable[[Any], tuple[Any, ...] | None]) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.reference = reference

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        return None if type(obj) in _ATOMS else self.reference(obj)

    def reducer_override(self, obj: Any) -> Any:
        raise _NotPlain


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


def _as_host_array(part: Any) -> tuple[np.ndarray[Any, Any], _Kind] | None:
    """An array as one of NumPy's; None for anything else, and for arrays that only their library can pickle."""
    if type(part) is np.ndarray:
        if part.dtype.hasobject or part.dtype.names:
            return None
        return part, _Kind("numpy", part.dtype.str)
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
            return None
        return np.asarray(part), _Kind("jax", str(part.dtype))
    return None


def _from_host_array(host: np.ndarray[Any, Any], kind: _Kind) -> Any:
    if kind.library == "numpy":
        return host
    if kind.library == "jax":
        import jax

        numpy: Any = jax.numpy
        return numpy.asarray(host)
    import torch

    module: Any = torch
    tensor: Any = module.from_numpy(host)
    if str(tensor.dtype) != f"torch.{kind.dtype}":
        tensor = tensor.view(getattr(torch, kind.dtype))
    return tensor.requires_grad_(kind.requires_grad)
