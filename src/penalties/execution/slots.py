"""Memory-mapped files through which tasks and their results travel, used again at the next step."""

import itertools
import mmap
import os
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

__all__ = ["START", "Slot", "Slots", "Views", "read", "size_of", "write"]

_ALIGNMENT: Final = 64
_SMALLEST: Final = 64 * 1024
_BEGAN: Final = struct.Struct("d")

START: Final = _ALIGNMENT
"""Where in a slot a task begins; before it is the time at which its function began to run."""


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def size_of(data: bytes, arrays: Sequence[np.ndarray[Any, Any]]) -> int:
    """Bytes that `write` takes for these."""
    return _aligned(8 * (2 + len(arrays))) + _aligned(len(data)) + sum(_aligned(array.nbytes) for array in arrays)


def write(memory: mmap.mmap, offset: int, data: bytes, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Copy bytes and arrays into a file, from an aligned offset on."""
    sizes = [len(data), *(array.nbytes for array in arrays)]
    np.ndarray((1 + len(sizes),), np.int64, memory, offset)[:] = [len(sizes), *sizes]
    offset += _aligned(8 * (1 + len(sizes)))
    memory[offset : offset + len(data)] = data
    offset += _aligned(len(data))
    for array in arrays:
        np.copyto(np.ndarray(array.shape, array.dtype, memory, offset), array)
        offset += _aligned(array.nbytes)


def read(memory: mmap.mmap, offset: int) -> tuple[bytes, list[memoryview], int]:
    """What was written there: the bytes, the arrays' memory, which lasts until the slot is used again, and the end."""
    count = int(np.ndarray((1,), np.int64, memory, offset)[0])
    first, *sizes = np.ndarray((count,), np.int64, memory, offset + 8).tolist()
    offset += _aligned(8 * (1 + count))
    data = memory[offset : offset + first]
    offset += _aligned(first)
    whole, views = memoryview(memory), list[memoryview]()
    for size in sizes:
        views.append(whole[offset : offset + size])
        offset += _aligned(size)
    return data, views, offset


class Slot:
    """A mapped file that holds one task and its result."""

    def __init__(self, folder: str, name: str, size: int | None = None) -> None:
        """Map a file; with a size, create it."""
        self.name = name
        self.path: str = os.path.join(folder, name)
        file = os.open(self.path, os.O_RDWR | (0 if size is None else os.O_CREAT | os.O_EXCL), 0o600)
        try:
            if size is not None:
                _allocate(file, size)
            self.memory: mmap.mmap = mmap.mmap(file, 0)
        except BaseException:
            if size is not None:
                self.unlink()
            raise
        finally:
            os.close(file)

    @property
    def began(self) -> float:
        """When the function was loaded and began to run, by `time.monotonic`, which all processes share; 0 before."""
        return _BEGAN.unpack_from(self.memory)[0]

    def start_clock(self) -> None:
        """The function is loaded and begins to run."""
        _BEGAN.pack_into(self.memory, 0, time.monotonic())

    def reset_clock(self) -> None:
        """A task is about to be sent."""
        _BEGAN.pack_into(self.memory, 0, 0.0)

    def unlink(self) -> None:
        """Remove the file; its memory is freed once no process has it mapped."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def __len__(self) -> int:
        """Bytes."""
        return len(self.memory)


def _allocate(file: int, size: int) -> None:
    # At once where that can be done: writing to memory that turns out not to be there kills the process.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


class Slots:
    """The caller's slots. Each is used by one task at a time, and by the next task that fits once that is done."""

    def __init__(self, folder: str) -> None:
        """None yet."""
        self.folder = folder
        self._lock = threading.Lock()
        self._free: list[Slot] = []
        self._names = itertools.count()

    def take(self, nbytes: int) -> Slot:
        """A slot of at least this size."""
        with self._lock:
            fitting = [slot for slot in self._free if len(slot) >= nbytes]
            if fitting:
                slot = min(fitting, key=len)
                self._free.remove(slot)
                return slot
            # One that is too small makes room: there are never more slots than tasks at once.
            small = self._free.pop() if self._free else None
        if small is not None:
            small.unlink()
        # Powers of two: batches whose sizes vary a little share slots.
        size = 1 << (max(nbytes, _SMALLEST) - 1).bit_length()
        return Slot(self.folder, f"slot-{next(self._names)}", size)

    def give(self, slot: Slot) -> None:
        """The next task may have it: nobody refers to it any more."""
        with self._lock:
            self._free.append(slot)


class Views:
    """The slots that a worker has mapped."""

    def __init__(self, folder: str) -> None:
        """None yet."""
        self._folder = folder
        self._open: dict[str, Slot] = {}

    def open(self, name: str) -> Slot:
        """The slot of this name."""
        if name not in self._open:
            # Slots that the caller has removed since take memory as long as they are mapped here.
            self._open = {other: slot for other, slot in self._open.items() if os.path.exists(slot.path)}
            self._open[name] = Slot(self._folder, name)
        return self._open[name]
