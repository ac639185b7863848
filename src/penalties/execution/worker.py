"""The inside of a worker process: it takes tasks from their slots, evaluates them, and writes the results back."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from typing import Any, Final

import numpy as np

from ..errors import TermError, said
from .board import Board, State
from .failure import Failure
from .portable import dumps
from .remote import Request, UnknownFunctionError, evaluate, load
from .slots import Slot, Views, read, size_of, write

__all__ = ["begin", "function_path", "reply_name", "run"]

_state: Final[dict[str, Any]] = {}


def function_path(folder: str, digest: str) -> str:
    """The file that a function is in."""
    return os.path.join(folder, f"function-{digest}")


def reply_name(slot: str) -> str:
    """The file for a result that does not fit into the slot."""
    return f"{slot}-reply"


def begin(folder: str, board: str, search_path: str | None) -> None:
    """Set the process up, once."""
    _state.update(folder=folder, views=Views(folder), board=Board(board))
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


def run(task: int, entry: int, slot: str) -> None:
    """Evaluate the task in a slot, unless it was cancelled; the board then says where the result is."""
    board: Board = _state["board"]
    if board.begin(entry, task):
        board.end(entry, _evaluated(board, entry, slot))


def _evaluated(board: Board, entry: int, slot: str) -> State:
    folder: str = _state["folder"]
    found: Slot = _state["views"].open(slot)
    header, arrays, start = read(found.memory, 0)
    request = Request(*pickle.loads(header))

    try:
        term = load(request, lambda: _body(folder, request.digest))
    except UnknownFunctionError:
        return State.UNKNOWN
    except TermError as error:
        packed = dumps(Failure.of(request.name, error))
    else:
        board.start_clock(entry)
        packed = evaluate(term, request, arrays)
    nbytes = size_of(packed.data, packed.arrays)
    if start + nbytes <= len(found):
        write(found.memory, start, packed.data, packed.arrays)
        return State.DONE
    try:
        beside = Slot(folder, reply_name(slot), nbytes)
    except OSError as error:
        message = f"its result takes {nbytes} bytes of shared memory: {said(error)}"
        packed = dumps(Failure.of(request.name, TermError(request.name, message)))
        write(found.memory, start, packed.data, packed.arrays)
        return State.DONE
    write(beside.memory, 0, packed.data, packed.arrays)
    return State.DONE_BESIDE


def _body(folder: str, digest: str) -> bytes:
    try:
        with open(function_path(folder, digest), "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise UnknownFunctionError from None
