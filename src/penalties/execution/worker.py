"""The inside of a worker process: it takes tasks from their slots, evaluates them, and writes the results back."""

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
from enum import IntEnum
from typing import Any

import numpy as np

from ..errors import TermError, said
from .failure import Failure
from .portable import dumps
from .remote import Request, UnknownFunctionError, evaluate, load
from .slots import START, Slot, size_of

__all__ = ["Outcome", "reply_name", "serve"]


class Outcome(IntEnum):
    """What has become of a task: the first byte of a worker's answer."""

    DONE = 1
    """Its result is in the slot."""
    DONE_BESIDE = 2
    """Its result is in a file beside the slot."""
    UNKNOWN = 3
    """Its function has to be sent again."""
    FAILED = 4
    """The worker could not serve it; a message follows."""


def reply_name(slot: str) -> str:
    """The file for a result that does not fit into the slot."""
    return f"{slot}-reply"


def serve(folder: str, address: str, number: int, search_path: str | None) -> None:
    """Evaluate one task after another; ends with the process, once the caller is not there any more."""
    try:
        _set_up(search_path)
        slot: Slot | None = None
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        connection.sendall(f"{number} {os.getpid()}".encode())
        # One task at a time: the name of its slot, so short that it comes whole.
        while name := connection.recv(100).decode():
            try:
                if slot is None or slot.name != name:
                    slot = Slot(folder, name)
                answer = bytes([_evaluated(folder, slot)])
            except Exception as error:
                answer = bytes([Outcome.FAILED]) + said(error).encode()[:1000]
            connection.sendall(answer)
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


def _evaluated(folder: str, slot: Slot) -> Outcome:
    header, arrays, start = slot.read(START)
    parts, body = pickle.loads(header)
    request = Request(*parts)
    try:
        term = load(request, body)
    except UnknownFunctionError:
        return Outcome.UNKNOWN
    except TermError as error:
        packed = dumps(Failure.of(request.name, error))
    else:
        slot.start_clock()
        packed = evaluate(term, request, arrays)
    nbytes = size_of(packed.data, packed.arrays)
    if start + nbytes <= len(slot):
        slot.write(start, packed.data, packed.arrays)
        return Outcome.DONE
    try:
        beside = Slot(folder, reply_name(slot.name), START + nbytes)
    except OSError as error:
        message = f"its result takes {nbytes} bytes of shared memory: {said(error)}"
        packed = dumps(Failure.of(request.name, TermError(request.name, message)))
        slot.write(start, packed.data, packed.arrays)
        return Outcome.DONE
    beside.write(START, packed.data, packed.arrays)
    return Outcome.DONE_BESIDE
