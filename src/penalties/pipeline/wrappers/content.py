"""A digest of what a term reads: equal for equal content, whichever process computes it."""

import dataclasses
import hashlib
import struct
import sys
from typing import Any, Final, cast

import numpy as np

from ...arrays import is_array
from ...backends import owner
from ..kinds import described, is_dense, is_mapping

__all__ = ["ContentError", "digest_of"]

_KEPT_AS_IS: Final = (str, bytes, bool, int, float, type(None))


class ContentError(ValueError):
    """A value of which it cannot be said whether another is equal."""


def digest_of(value: Any) -> str:
    """The digest of a value as 64 hexadecimal digits.

    The value is None, a number, a string, bytes, an array, a list, tuple, mapping or dataclass of these, or an object
    with `model_dump`, as pydantic's are. Arrays differ by library, dtype, shape and elements.

    >>> import numpy as np
    >>> digest_of({"x": np.ones(2)}) == digest_of({"x": np.ones(2)})
    True
    >>> digest_of(np.ones(2)) == digest_of(np.ones((2, 1)))
    False
    """
    hasher = hashlib.blake2b(digest_size=32)
    _add(hasher, "", value)
    return hasher.hexdigest()


def _add(hasher: Any, where: str, value: Any) -> None:
    """Each part with its kind and its length before it, so that no two values have the same bytes."""
    if type(value) in _KEPT_AS_IS:
        _add_bytes(hasher, type(value).__name__, _bytes_of(value))
    elif is_array(value):
        _add_array(hasher, where, value)
    elif is_mapping(value):
        _add_bytes(hasher, "mapping", struct.pack("<q", len(value)))
        for key, part in value.items():
            _add(hasher, where, key)
            _add(hasher, f"{where}[{key!r}]", part)
    elif isinstance(value, list | tuple):
        # A NamedTuple by its class: the function may read its fields.
        parts = cast("list[Any] | tuple[Any, ...]", value)
        _add_bytes(hasher, _class_of(parts), struct.pack("<q", len(parts)))
        for index, part in enumerate(parts):
            _add(hasher, f"{where}[{index}]", part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
        _add_bytes(hasher, _class_of(value), b"")
        _add(hasher, where, fields)
    elif hasattr(value, "model_dump"):
        model: Any = value
        _add_bytes(hasher, _class_of(model), b"")
        _add(hasher, where, model.model_dump())
    else:
        kinds = "arrays, numbers, strings, and lists, tuples, dicts and dataclasses of them"
        raise ContentError(_said(where, f"holds {described(value)}; expected {kinds}"))


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, float):
        return struct.pack("<d", value)
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def _add_bytes(hasher: Any, kind: str, data: Any) -> None:
    name = kind.encode()
    hasher.update(struct.pack("<qq", len(name), len(data)))
    hasher.update(name)
    hasher.update(data)


def _add_array(hasher: Any, where: str, array: Any) -> None:
    ops = owner(array)
    assert ops is not None, "it is an array"
    if ops.tracing(array):
        raise ContentError(_said(where, "holds an array without elements, inside a compiler"))
    if not is_dense(array):
        raise ContentError(_said(where, f"holds {described(array)} that is sparse, masked, quantized or nested"))
    try:
        host = _host(array)
    except TypeError as error:
        # Keys of JAX, for one.
        raise ContentError(_said(where, f"holds an array of {array.dtype}; expected numbers")) from error
    if host.dtype.hasobject:
        raise ContentError(_said(where, "holds an array of objects; expected numbers"))
    kind = f"{ops.LIBRARY} {array.dtype} {tuple(array.shape)}"
    _add_bytes(hasher, kind, np.ascontiguousarray(host).reshape(-1).view(np.uint8).data)


def _host(array: Any) -> "np.ndarray[Any, Any]":
    """The elements in the memory of the host, as NumPy has them; those that it has not, as bytes."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return np.asarray(array)
    tensor: Any = array
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # One element counts as contiguous whatever its stride, and not for a view in another dtype.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy()


def _said(where: str, what: str) -> str:
    return f"{where or 'it'} {what}"


def _class_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
