"""The inside of a worker process: loads terms once, evaluates them, and writes gradients where the caller looks."""

import contextlib
import ctypes
import importlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver as forkserver
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from ..backends import double_precision
from ..errors import PenaltiesError, TermError, said
from ..pipeline.awaitables import waiting
from ..pipeline.term import Term
from .awaiting import wait_here
from .blocks import LARGE, Lent, Outlet, Views, aligned, lay
from .evaluating import evaluate_away
from .native import cap_threads
from .portable import Packed, dumps, loads

__all__ = [
    "LOADED",
    "Failure",
    "Reply",
    "Request",
    "answer",
    "applied",
    "begin",
    "evaluated",
    "loaded",
    "serve",
    "settings_of",
]

LOADED: Final = 256
"""Terms that a worker keeps."""


class Request(NamedTuple):
    """One evaluation: which term, and where its inputs lie."""

    name: str
    key: int
    body: bytes | None
    """The term, where the worker may not have it yet."""
    data: bytes
    arrays: Sequence[Packed | Lent]
    outlet: Outlet | None
    """Where large arrays of the evaluation go."""
    settings: Mapping[str, Any]
    """By library: the default dtype of PyTorch, and whether JAX has 64 bits."""
    clock: tuple[str, int]
    """Where to write when the term was loaded, by which process, and that it is done."""


class Reply(NamedTuple):
    """What came of it: an evaluation or a failure in bytes, and the blocks that the term still refers to."""

    data: bytes
    arrays: Sequence[Packed | Lent]
    retained: tuple[str, ...] = ()
    known: bool = True
    """False where the term is not here, and has to be sent; without data that is all there is to say."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that travels with its cause: as an object where that can be had, and as text."""

    raised: PenaltiesError
    cause: bytes | None
    shown: str

    @classmethod
    def of(cls, name: str, error: BaseException) -> "Failure":
        """What can be sent of an error."""
        raised = error
        if not isinstance(raised, PenaltiesError):
            raised = TermError(name, f"raised {said(error)}")
            raised.__cause__ = error
        cause = raised.__cause__
        if cause is None:
            return cls(raised, None, "")
        try:
            sent = dumps(cause)[0]
        except Exception:
            sent = None
        return cls(raised, sent, "".join(traceback.format_exception(cause)))

    def error(self) -> PenaltiesError:
        """The error again, with its cause."""
        cause: Any = None
        if self.cause is not None:
            try:
                cause = pickle.loads(self.cause)
            except Exception:
                # Its class may not exist here, or not be made from what it was sent as.
                cause = None
        if not isinstance(cause, BaseException):
            cause = RuntimeError("raised elsewhere") if self.shown else None
        if cause is not None:
            cause.add_note(f"where the term ran:\n{self.shown.rstrip()}")
        self.raised.__cause__ = cause
        return self.raised


_views: Final = Views()
_terms: Final[OrderedDict[int, Term]] = OrderedDict()


def begin(threads: int) -> None:
    """Set the process up, once."""
    cap_threads(threads)
    _keep_memory()
    _die_with_the_server()
    # Arrays come through the memory of the host; a worker that asked for the accelerator would take it from the caller.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Forked from one server, they would all draw the same.
    np.random.seed(int.from_bytes(os.urandom(4)))  # noqa: NPY002 (the generator that terms share)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int.from_bytes(os.urandom(8)) >> 1)
    # Pebble's handler is Python, which does not run while a term is in C: killing it would take three seconds more.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_the_caller, daemon=True).start()


def _keep_memory() -> None:
    """Keep freed memory up to a quarter of a gigabyte: fetching megabytes again costs more than most terms."""
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, the most that it can be


def _die_with_the_server() -> None:
    """Be killed when the server ends, which it does with the caller: a thread cannot look while a term is in C."""
    server: Any = vars(forkserver)["_forkserver"]
    held, server._forkserver_alive_fd = server._forkserver_alive_fd, None
    if held is not None:
        # Held here, it would keep the server alive.
        os.close(held)
    prctl: Any = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _end_with_the_caller() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def answer() -> None:
    """Serve one request after the other, until the caller hangs up."""
    process: Any = multiprocessing.current_process()
    # Held open by what a term forks, the line would not tell of the end of this process.
    os.register_at_fork(after_in_child=process.line.close)
    with contextlib.suppress(EOFError, OSError):
        while True:
            process.line.send(serve(process.line.recv()))


def serve(request: Request) -> Reply:
    """Evaluate a term, and give back what it gave or why it did not."""
    process = os.getpid()
    try:
        term = loaded(request)
        for library in request.settings:
            if library not in sys.modules:
                # Before the clock starts: it takes a second.
                importlib.import_module(library)
    except Exception as error:
        message = f"could not be loaded in a process: {said(error)}"
        if isinstance(error, ModuleNotFoundError):
            message += "; what a script defines travels by value, and modules are imported by name: put it on the path"
        failed = TermError(request.name, message)
        failed.__cause__ = error
        return Reply(dumps(Failure.of(request.name, failed))[0], (), known=False)
    if term is None:
        return Reply(b"", (), known=False)
    board = _board(request.clock)
    board[:2] = time.monotonic(), process
    seen: list[tuple[str, Callable[[], Any]]] = []
    try:
        with applied(request.settings):
            data, arrays = evaluated(term, request, seen)
    except BaseException as error:
        # A term that calls sys.exit() ends neither its worker nor the caller.
        data, arrays = dumps(Failure.of(request.name, error))[0], []
    finally:
        # A term that forked: its child must not go on as a second worker.
        if os.getpid() != process:
            os._exit(0)
    retained = tuple(name for name, alive in seen if alive() is not None)
    _views.forget(retained)
    board[2] = 1.0
    return Reply(data, arrays, retained)


def loaded(request: Request) -> Term | None:
    """The term of a request; None where it was not sent before."""
    if request.key in _terms:
        _terms.move_to_end(request.key)
    elif request.body is None:
        return None
    else:
        _terms[request.key] = loads(request.body, ())
        if len(_terms) > LOADED:
            _terms.popitem(last=False)
    return _terms[request.key]


def _board(clock: tuple[str, int]) -> Any:
    """Three numbers for this task: when it began, the process that it runs in, and whether it is done."""
    name, slot = clock
    return np.ndarray((3,), np.float64, _views.attach(name).buf, 24 * slot)


def evaluated(
    term: Term, request: Request, seen: list[tuple[str, Callable[[], Any]]]
) -> tuple[bytes, list[Packed | Lent]]:
    """An evaluation as bytes and arrays; `seen` gets each block that was read, and what says whether it still is."""
    inputs, wrt, step, state = loads(request.data, [_seen(array, seen) for array in request.arrays])
    with waiting(wait_here):
        evaluation = evaluate_away(term, inputs, wrt, step=step, state=state)
    # Whoever still refers to an input after this is the term.
    del inputs
    # As a tuple: an object would have to name its class.
    data, arrays = dumps(
        (
            evaluation.value,
            evaluation.gradient,
            dict(evaluation.metrics),
            evaluation.state,
            evaluation.duration,
            evaluation.grad_error,
        )
    )
    return data, _placed(arrays, request.outlet)


def _seen(array: Packed | Lent, seen: list[tuple[str, Callable[[], Any]]]) -> Packed:
    if isinstance(array, Packed):
        return array
    packed, alive = _views.see(array)
    seen.append((array.block, alive))
    return packed


def _placed(arrays: Sequence[Packed], outlet: Outlet | None) -> list[Packed | Lent]:
    """Large arrays in the outlet as long as there is room, the others as they are."""
    placed: list[Packed | Lent] = []
    offset = 0
    for packed in arrays:
        size = packed.data.nbytes
        if outlet is None or size < LARGE or offset + size > outlet.nbytes:
            placed.append(packed)
        else:
            placed.append(lay(_views.attach(outlet.block), packed, outlet.offset + offset))
            offset += aligned(size)
    return placed


@contextlib.contextmanager
def applied(settings: Mapping[str, Any]) -> Generator[None]:
    """The caller's settings of the libraries, as far as they change numbers."""
    with contextlib.ExitStack() as stack:
        if "torch" in settings:
            import torch

            torch.set_default_dtype(getattr(torch, settings["torch"]))
        if "jax" in settings:
            stack.enter_context(double_precision(settings["jax"]))
        yield


def settings_of(arrays: Sequence[Packed]) -> dict[str, Any]:
    """Settings of the libraries of these arrays that change numbers, as they are in the caller."""
    libraries = {packed.library for packed in arrays}
    settings: dict[str, Any] = {}
    if "torch" in libraries:
        import torch

        settings["torch"] = str(torch.get_default_dtype()).removeprefix("torch.")
    if "jax" in libraries:
        import jax

        config: Any = jax.config
        settings["jax"] = bool(config.jax_enable_x64)
    return settings
