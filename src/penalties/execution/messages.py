"""What a caller and its worker process send each other at their connection; tasks and results are in slots."""

import socket
import struct
from enum import IntEnum
from typing import Final, NamedTuple

from .slots import Slot

__all__ = ["Answer", "Kind", "receive_slot", "send_slot"]

_TASK: Final = struct.Struct("<Q?")
"""The number of a task, and whether the descriptor of a new slot comes with it."""

_ANSWER: Final = struct.Struct("<QB?Q200s")


class Kind(IntEnum):
    """What a worker has to say about a task: each at most once, in this order."""

    TAKEN = 1
    """Its function, or a library, is being loaded."""
    BEGAN = 2
    """Its function is loaded and begins to run."""
    MORE = 3
    """Its result needs a slot of another size."""
    DONE = 4
    """Its result is in the slot."""
    UNKNOWN = 5
    """Its function has to be sent again."""
    FAILED = 6
    """The worker could not serve it, and says why."""


class Answer(NamedTuple):
    """A message of a worker's, of fixed size."""

    task: int
    kind: Kind
    last: bool = False
    """Whether the worker ends after it."""
    nbytes: int = 0
    why: str = ""

    SIZE = _ANSWER.size

    def packed(self) -> bytes:
        """As bytes."""
        return _ANSWER.pack(self.task, self.kind, self.last, self.nbytes, self.why.encode(errors="replace"))

    @classmethod
    def of(cls, data: bytes) -> "Answer":
        """From bytes; raises `ValueError` where they are not an answer."""
        task, kind, last, nbytes, why = _ANSWER.unpack(data)
        return cls(task, Kind(kind), last, nbytes, why.rstrip(b"\0").decode(errors="replace"))


def send_slot(connection: socket.socket, task: int, slot: Slot) -> None:
    """In the caller: a task is in a slot; a new one is passed on."""
    file = slot.take_file()
    if file is None:
        connection.sendall(_TASK.pack(task, False))
    else:
        with file:
            socket.send_fds(connection, [_TASK.pack(task, True)], [file.fileno()])


def receive_slot(connection: socket.socket) -> tuple[int, Slot | None]:
    """In the worker: the next task, and its slot if that is a new one; raises `EOFError` at the end."""
    data, files, _, _ = socket.recv_fds(connection, _TASK.size, 1)
    if len(data) < _TASK.size:
        raise EOFError
    task, brings = _TASK.unpack(data)
    if not brings:
        return task, None
    if not files:
        raise OSError("no descriptor is left for the slot of the task")
    with open(files[0], "r+b", buffering=0) as file:
        return task, Slot(file.fileno())
