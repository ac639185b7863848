"""Shared memory through which a task and its result travel, used again at the next step.

It is a mapped file without a name: nobody can remove it, and it goes with the processes that have it.
"""

import contextlib
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import IO, Any, Final

import numpy as np

__all__ = ["SHARED", "Slot", "size_of"]

SHARED: Final = "/dev/shm"
"""Where files are in memory, on Linux."""

_ALIGNMENT: Final = 64
_SMALLEST: Final = 64 * 1024


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def size_of(data: bytes, arrays: Sequence[np.ndarray[Any, Any]]) -> int:
    """Bytes that `Slot.write` takes for these."""
    return _aligned(8 * (2 + len(arrays))) + _aligned(len(data)) + sum(_aligned(array.nbytes) for array in arrays)


class Slot:
    """A mapped file that holds one task and its result."""

    def __init__(self, file: int) -> None:
        """Map an open file."""
        self._memory = mmap.mmap(file, 0)
        self._file: IO[bytes] | None = None

    @classmethod
    def of_size(cls, nbytes: int) -> "Slot":
        """A new one, of at least so many bytes; raises `OSError` where there are not as many."""
        # A power of two: batches whose sizes vary a little fit into the same slot.
        size = 1 << (max(nbytes, _SMALLEST) - 1).bit_length()
        with contextlib.ExitStack() as opened:
            above = SHARED if os.access(SHARED, os.W_OK) else None
            file = opened.enter_context(tempfile.TemporaryFile(dir=above, buffering=0))
            _allocate(file.fileno(), size)
            slot = cls(file.fileno())
            slot._file = file
            # It stays open until it is taken.
            opened.pop_all()
        return slot

    def take_file(self) -> IO[bytes] | None:
        """The open file of a new slot, to be passed to another process and closed; None once it was taken."""
        file, self._file = self._file, None
        return file

    def close(self) -> None:
        """Give the memory back, once no process has it mapped."""
        file = self.take_file()
        if file is not None:
            file.close()
        self._memory.close()

    def __len__(self) -> int:
        """Bytes."""
        return len(self._memory)

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


def _allocate(file: int, size: int) -> None:
    # At once where that can be done: writing to memory that turns out not to be there kills the process.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)
