"""Objects as bytes, and the arrays inside them apart: how inputs and evaluations travel between processes."""

import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np

from ..errors import MissingLibraryError

__all__ = ["CapturedError", "Packed", "dumps", "function_bytes", "loads"]


class Packed(NamedTuple):
    """An array of any library as one of NumPy's in the memory of the host, and what it takes to make it again."""

    library: str
    """`numpy`, `torch` or `jax`."""
    dtype: str
    """Its name in that library."""
    requires_grad: bool
    data: np.ndarray[Any, Any]

    def __reduce__(self) -> Any:
        """Pickle the numbers as bytes: NumPy's own way takes five times as long for a few of them."""
        library, dtype, requires_grad, data = self
        return _received, (library, dtype, requires_grad, bytearray(data.tobytes()), data.dtype.str, data.shape)


def _received(
    library: str, dtype: str, requires_grad: bool, data: bytearray, kind: str, shape: tuple[int, ...]
) -> Packed:
    return Packed(library, dtype, requires_grad, np.frombuffer(data, kind).reshape(shape))


_ATOMS: Final = frozenset((str, int, float, bool, type(None), dict, list, tuple))
"""What is no array, and most of what is asked about."""


class CapturedError(Exception):
    """A tensor that requires a gradient, inside a function that is to run where no gradient can reach it."""


def dumps(value: Any) -> tuple[bytes, list[Packed]]:
    """The bytes of an object without its arrays, and those, each once."""
    arrays: list[Packed] = []
    known: dict[int, int] = {}
    kept: list[Any] = []

    def place_of(part: Any) -> int | None:
        if id(part) in known:
            return known[id(part)]
        packed = _packed(part)
        if packed is None:
            return None
        # Kept: an address names an object only as long as that lives.
        kept.append(part)
        arrays.append(packed)
        known[id(part)] = len(arrays) - 1
        return known[id(part)]

    buffer = io.BytesIO()
    try:
        _Plain(buffer, place_of).dump(value)
    except _NotPlain:
        return _pickled(value, place_of), arrays
    return buffer.getvalue(), arrays


def loads(data: bytes, arrays: Sequence[Packed]) -> Any:
    """The object again, with arrays of the libraries that they came from."""
    return _Unpickler(data, arrays).load()


def function_bytes(value: Any) -> bytes:
    """A function, or an object that holds one, as bytes; lambdas and closures by value.

    Refuses one that holds a tensor that requires a gradient, which would not be trained.
    """

    def nowhere(part: Any) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(part, torch.Tensor) and part.requires_grad:
            raise CapturedError(f"a tensor of shape {tuple(part.shape)}")

    return _pickled(value, nowhere)


def _pickled(value: Any, place_of: Callable[[Any], int | None]) -> bytes:
    buffer = io.BytesIO()
    _pickler_class()(buffer, place_of).dump(value)
    return buffer.getvalue()


class _NotPlain(Exception):
    """Something that has to go by value, if anybody's class or function does."""


class _Plain(pickle.Pickler):
    """Containers, numbers and arrays, in a third of the time: most of what travels is no more than that."""

    def __init__(self, buffer: io.BytesIO, place_of: Callable[[Any], int | None]) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.place_of = place_of

    def persistent_id(self, obj: Any) -> int | None:
        return None if type(obj) in _ATOMS else self.place_of(obj)

    def reducer_override(self, obj: Any) -> Any:
        raise _NotPlain


@functools.cache
def _pickler_class() -> Any:
    try:
        module: Any = importlib.import_module("cloudpickle")
    except ImportError as error:
        raise MissingLibraryError("a term that runs elsewhere", "cloudpickle", extra="process") from error

    class Pickler(module.Pickler):
        def __init__(self, buffer: io.BytesIO, place_of: Callable[[Any], int | None]) -> None:
            module.Pickler.__init__(self, buffer, protocol=pickle.HIGHEST_PROTOCOL)
            self.place_of = place_of

        def persistent_id(self, obj: Any) -> int | None:
            return self.place_of(obj)

        def reducer_override(self, obj: Any) -> Any:
            # Of a script, whose functions go by value: cloudpickle would send the name alone.
            if isinstance(obj, _CACHED) and obj.__module__ == "__main__":
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            return module.Pickler.reducer_override(self, obj)

    return Pickler


_CACHED: Final[type[Any]] = type(functools.lru_cache(lambda: None))


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """A function with an empty cache of its own, as where it came from."""
    return functools.lru_cache(**parameters)(function)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arrays: Sequence[Packed]) -> None:
        super().__init__(io.BytesIO(data))
        self.packed: Sequence[Packed] = arrays
        self.made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        if pid not in self.made:
            self.made[pid] = _unpacked(cast("Packed", self.packed[pid]))
        return self.made[pid]


def _packed(part: Any) -> Packed | None:
    """An array as data of the host; None for what is no array, or one that only its library can carry."""
    if type(part) is np.ndarray:
        if part.dtype.hasobject or part.dtype.names:
            return None
        return Packed("numpy", part.dtype.str, False, part)
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
        return Packed("torch", dtype, tensor.requires_grad, host.numpy())
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(part, jax.Array):
        if jax.dtypes.issubdtype(part.dtype, jax.dtypes.prng_key):
            return None
        return Packed("jax", str(part.dtype), False, np.asarray(part))
    return None


def _unpacked(packed: Packed) -> Any:
    if packed.library == "numpy":
        return packed.data
    if packed.library == "jax":
        import jax

        numpy: Any = jax.numpy
        return numpy.asarray(packed.data)
    import torch

    data = packed.data if packed.data.flags.writeable else packed.data.copy()
    module: Any = torch
    tensor: Any = module.from_numpy(data)
    if str(tensor.dtype) != f"torch.{packed.dtype}":
        tensor = tensor.view(getattr(torch, packed.dtype))
    return tensor.requires_grad_(packed.requires_grad)
