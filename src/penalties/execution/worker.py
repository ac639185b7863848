"""The inside of a worker process: it takes tasks from their slots, evaluates them, and writes the results back."""

import contextlib
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import sys
import threading
from typing import Any, Final

import numpy as np

from ..errors import TermError, said
from .messages import Answer, Kind, receive_slot
from .remote import Request, UnknownFunctionError, evaluate, failed, is_loaded, load
from .slots import Slot, size_of

__all__ = ["serve"]

_LIMITS: Final = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))

_LARGE: Final = 2**28
"""Bytes of a task that take their time to read."""


def serve(address: str, number: int, search_path: str | None) -> None:
    """Evaluate one task after another; ends with the process, once the caller is not there any more.

    Raises, in the broker, where this process cannot be set up.
    """
    _set_up(search_path)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    connection.sendall(f"{number} {os.getpid()}".encode())
    try:
        _Serving(connection).run()
    finally:
        os._exit(1)


def _set_up(search_path: str | None) -> None:
    # The broker was started with the caller's path to import from; what terms start is not.
    if search_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = search_path
    # Forked from one server, all workers would draw the same numbers.
    np.random.seed(int.from_bytes(os.urandom(4)))  # noqa: NPY002 (the generator that terms share)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int.from_bytes(os.urandom(8)) >> 1)
    # Pebble's handler is Python code, which does not run while a term is inside C code.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_the_broker, daemon=True).start()


def _end_with_the_broker() -> None:
    broker = multiprocessing.parent_process()
    if broker is not None:
        broker.join()
        os._exit(1)


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(limit) for limit in _LIMITS]


class _Serving:
    """The connection to the caller, and the slot that its tasks come in."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._limits = _limits()
        self._task = 0
        self._slot: Slot | None = None

    def run(self) -> None:
        """Serve until the caller is gone, or a term has changed the limits of this process."""
        last = False
        while not last:
            self._task, slot = receive_slot(self._connection)
            self._slot = slot or self._slot
            try:
                last = self._evaluate()
            except Exception as error:
                self._send(Kind.FAILED, last=True, why=said(error))
                last = True
            # In a pipe or a file, what a term printed would wait, and be lost with the process.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()

    def _send(self, kind: Kind, *, last: bool = False, nbytes: int = 0, why: str = "") -> None:
        self._connection.sendall(Answer(self._task, kind, last, nbytes, why).packed())

    def _evaluate(self) -> bool:
        """Evaluate the task in the slot; returns whether it was the last."""
        slot = self._slot
        assert slot is not None, "the first task brings one"
        large = len(slot) > _LARGE
        if large:
            self._send(Kind.TAKEN)
        header, arrays, start = slot.read(0)
        parts, body = pickle.loads(header)
        request = Request(*parts)
        if not large and not is_loaded(request):
            self._send(Kind.TAKEN)
        try:
            term = load(request, body)
        except UnknownFunctionError:
            self._send(Kind.UNKNOWN)
            return False
        except TermError as error:
            packed = failed(request.name, error)
        else:
            self._send(Kind.BEGAN)
            packed = evaluate(term, request, arrays)
        nbytes = size_of(packed.data, packed.arrays)
        if start + nbytes > len(slot):
            self._send(Kind.MORE, nbytes=nbytes)
            _, room = receive_slot(self._connection)
            assert room is not None, "a new one"
            room.write(0, packed.data, packed.arrays)
            room.close()
        else:
            slot.write(start, packed.data, packed.arrays)
        # Limits that a term changed would be those of the next.
        last = _limits() != self._limits
        self._send(Kind.DONE, last=last)
        return last
