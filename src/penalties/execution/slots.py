"""Memory-mapped files through which tasks and their results travel, used again at the next step."""

import mmap
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

__all__ = ["START", "Slot", "size_of"]

_ALIGNMENT: Final = 64
_SMALLEST: Final = 64 * 1024
_BEGAN: Final = struct.Struct("d")

START: Final = _ALIGNMENT
"""Where in a slot a task begins; before it is the time at which its function began to run."""


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def size_of(data: bytes, arrays: Sequence[np.ndarray[Any, Any]]) -> int:
    """Bytes that `Slot.write` takes for these."""
    return _aligned(8 * (2 + len(arrays))) + _aligned(len(data)) + sum(_aligned(array.nbytes) for array in arrays)


class Slot:
    """A mapped file that holds one task and its result."""

    def __init__(self, folder: str, name: str, size: int | None = None) -> None:
        """Map a file; with a size, create it at least that large."""
        self.name = name
        self.path: str = os.path.join(folder, name)
        file = os.open(self.path, os.O_RDWR | (0 if size is None else os.O_CREAT | os.O_EXCL), 0o600)
        try:
            if size is not None:
                # A power of two: batches whose sizes vary a little fit into the same slot.
                _allocate(file, 1 << (max(size, _SMALLEST) - 1).bit_length())
            self._memory = mmap.mmap(file, 0)
        except BaseException:
            if size is not None:
                self.unlink()
            raise
        finally:
            os.close(file)

    def __len__(self) -> int:
        """Bytes."""
        return len(self._memory)

    @property
    def began(self) -> float:
        """When the function was loaded and began to run, by `time.monotonic`, which all processes share; 0 before."""
        return _BEGAN.unpack_from(self._memory)[0]

    def reset_clock(self) -> None:
        """A task is about to be sent."""
        _BEGAN.pack_into(self._memory, 0, 0.0)

    def start_clock(self) -> None:
        """The function is loaded and begins to run."""
        _BEGAN.pack_into(self._memory, 0, time.monotonic())

    def write(self, offset: int, data: bytes, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        """Copy bytes and arrays into the file, from an aligned offset on."""
        sizes = [len(data), *(array.nbytes for array in arrays)]
        np.ndarray((1 + len(sizes),), np.int64, self._memory, offset)[:] = [len(sizes), *sizes]
        offset += _aligned(8 * (1 + len(sizes)))
        self._memory[offset : offset + len(data)] = data
        offset += _aligned(len(data))
        for array in arrays:
            np.copyto(np.ndarray(array.shape, array.dtype, self._memory, offset), array)
            offset += _aligned(array.nbytes)

    def read(self, offset: int) -> tuple[bytes, list[np.ndarray[Any, Any]], int]:
        """What was written there, copied: the bytes, the memory of the arrays, and the end."""
        count = int(np.ndarray((1,), np.int64, self._memory, offset)[0])
        first, *sizes = np.ndarray((count,), np.int64, self._memory, offset + 8).tolist()
        offset += _aligned(8 * (1 + count))
        data = self._memory[offset : offset + first]
        offset += _aligned(first)
        arrays: list[np.ndarray[Any, Any]] = []
        for size in sizes:
            arrays.append(np.ndarray((size,), np.uint8, self._memory, offset).copy())
            offset += _aligned(size)
        return data, arrays, offset

    def unlink(self) -> None:
        """Remove the file; its memory is freed once no process has it mapped."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)


def _allocate(file: int, size: int) -> None:
    # At once where that can be done: writing to memory that turns out not to be there kills the process.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)
