"""Memory that processes share, taken once and used again at the next step."""

import contextlib
import ctypes
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from multiprocessing import shared_memory
from typing import Any, Final, NamedTuple

import numpy as np

from .portable import Packed

__all__ = ["LARGE", "Blocks", "Lent", "Outlet", "Views", "aligned", "lay", "read"]

LARGE: Final = 8 * 1024
"""Bytes from which on an array goes through shared memory: below, a pipe is as fast."""

_ALIGNMENT: Final = 64
_SMALLEST: Final = 64 * 1024
_FOLDER: Final = "/dev/shm"
"""Where Linux shows shared memory."""

_ATTACHED: Final = 128
"""Blocks that a worker keeps open."""


class Lent(NamedTuple):
    """An array that lies in a block: what a worker needs to see it."""

    block: str
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    numpy_dtype: str
    library: str
    dtype: str
    requires_grad: bool


class Outlet(NamedTuple):
    """A part of a block that a worker may write to."""

    block: str
    offset: int
    nbytes: int


class Blocks:
    """The blocks of one executor. Who takes one gives it back, and the next who needs that much gets it."""

    def __init__(self) -> None:
        """None yet."""
        self._lock = threading.Lock()
        self._free: list[shared_memory.SharedMemory] = []
        self._all: dict[str, shared_memory.SharedMemory] = {}
        self._closed = False

    def take(self, nbytes: int) -> shared_memory.SharedMemory:
        """A block of at least so many bytes."""
        # Powers of two: arrays whose sizes vary a little, as batches do, still find each other's blocks.
        size = 1 << max(nbytes - 1, _SMALLEST - 1).bit_length()
        with self._lock:
            for place, block in enumerate(self._free):
                if block.size >= nbytes and block.size <= 4 * size:
                    return self._free.pop(place)
            if self._closed:
                raise RuntimeError("closed")
            block = shared_memory.SharedMemory(create=True, size=size)
            try:
                _fill(block)
            except OSError:
                _remove(block)
                raise
            self._all[block.name] = block
            return block

    def give(self, blocks: Sequence[shared_memory.SharedMemory], retained: Sequence[str] = ()) -> None:
        """Give blocks back; those that a worker still looks into are let go, and never written to again."""
        with self._lock:
            for block in blocks:
                if block.name not in self._all:
                    continue
                if block.name in retained:
                    _remove(self._all.pop(block.name))
                else:
                    self._free.append(block)

    def close(self) -> None:
        """Remove all of them."""
        with self._lock:
            self._closed = True
            for block in self._all.values():
                _remove(block)
            self._all.clear()
            self._free.clear()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)


def _fill(block: shared_memory.SharedMemory) -> None:
    """Take the memory now: where there is too little, writing to it later would kill the process."""
    descriptor = getattr(block, "_fd", -1)
    if descriptor >= 0 and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, block.size)


def _remove(block: shared_memory.SharedMemory) -> None:
    with contextlib.suppress(BufferError):
        block.close()
    with contextlib.suppress(FileNotFoundError):
        block.unlink()


def _buffer(block: shared_memory.SharedMemory) -> memoryview:
    buffer = block.buf
    assert buffer is not None, "it is open"
    return buffer


def read(block: shared_memory.SharedMemory, lent: Lent) -> Packed:
    """A copy of an array that lies in a block."""
    view = np.ndarray(lent.shape, lent.numpy_dtype, _buffer(block), lent.offset)
    return Packed(lent.library, lent.dtype, lent.requires_grad, view.copy())


def lay(block: shared_memory.SharedMemory, packed: Packed, offset: int = 0) -> Lent:
    """Copy an array into a block."""
    data = packed.data
    view = np.ndarray(data.shape, data.dtype, _buffer(block), offset)
    np.copyto(view, data)
    return Lent(
        block.name,
        offset,
        data.nbytes,
        data.shape,
        data.dtype.str,
        packed.library,
        packed.dtype,
        packed.requires_grad,
    )


def aligned(nbytes: int) -> int:
    """So many bytes, up to where the next array may begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _removed(name: str) -> bool:
    """Whether a block is there no more, where that can be seen."""
    return os.path.isdir(_FOLDER) and not os.path.exists(f"{_FOLDER}/{name}")


class Views:
    """A worker's view of the blocks that it was lent arrays in."""

    def __init__(self) -> None:
        """None open yet."""
        self._open: OrderedDict[str, shared_memory.SharedMemory] = OrderedDict()
        self._held: list[shared_memory.SharedMemory] = []

    def attach(self, name: str) -> shared_memory.SharedMemory:
        """The block of this name."""
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        # The caller may have removed some since, after another worker used them: open here they still take memory.
        self.forget([other for other in self._open if _removed(other)])
        block = shared_memory.SharedMemory(name)
        self._open[name] = block
        while len(self._open) > _ATTACHED:
            self.forget([next(iter(self._open))])
        return block

    def forget(self, names: Sequence[str]) -> None:
        """Close blocks that will not come again, as soon as no term refers to what lies in them."""
        self._held += [self._open.pop(name) for name in names if name in self._open]
        still: list[shared_memory.SharedMemory] = []
        for block in self._held:
            try:
                block.close()
            except BufferError:
                still.append(block)
        self._held = still

    def see(self, lent: Lent) -> tuple[Packed, Callable[[], Any]]:
        """The array without a copy, and what gives None once nothing refers to it any more."""
        # An object of its own under the array: everything made of that keeps it alive.
        memory: Any = (ctypes.c_char * lent.nbytes).from_buffer(_buffer(self.attach(lent.block)), lent.offset)
        data: np.ndarray[Any, Any] = np.frombuffer(memory, np.dtype(lent.numpy_dtype)).reshape(lent.shape)
        return Packed(lent.library, lent.dtype, lent.requires_grad, data), weakref.ref(memory)
