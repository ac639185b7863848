"""Evaluating a term in a worker: a process of the pool, or an actor on a cluster."""

import contextlib
import contextvars
import dataclasses
import importlib
import os
import sys
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from ..arrays import Logits
from ..backends import double_precision
from ..errors import TermError, said
from ..pipeline.awaitables import waiting
from ..pipeline.evaluation import Evaluation
from ..pipeline.term import Term
from .awaiting import wait_here
from .evaluating import evaluate_away
from .failure import Failure
from .portable import Packed, dumps, dumps_data, loads, loads_data
from .task import Task

__all__ = ["Request", "UnknownFunctionError", "evaluate", "failed", "is_loaded", "load", "opened", "request_of"]

_LOADED: Final = 256
"""Terms that a worker keeps."""

_terms: Final[OrderedDict[str, Term]] = OrderedDict()


class Request(NamedTuple):
    """A request to a worker for one evaluation; its arrays are sent separately."""

    name: str
    digest: str
    """The function, which is sent once to each worker."""
    data: bytes
    settings: Mapping[str, Any]
    """By library, the caller's settings that change numbers: PyTorch's default dtype, JAX's 64 bits."""


class UnknownFunctionError(Exception):
    """The worker does not have the function, which has to be sent again."""


def request_of(task: Task, digest: str) -> tuple[Request, Packed]:
    """In the caller: the request, and the arrays that go with it."""
    try:
        packed = dumps((dict(task.inputs), task.wrt, task.step, task.state))
    except Exception as error:
        raise TermError(task.term.name, f"its inputs cannot be sent to another process: {said(error)}") from error
    return Request(task.term.name, digest, packed.data, _settings(packed.libraries)), packed


def is_loaded(request: Request) -> bool:
    """In the worker: whether the term is there, and the libraries that its inputs need."""
    return request.digest in _terms and all(library in sys.modules for library in request.settings)


def load(request: Request, body: bytes | None) -> Term:
    """In the worker: the term, of which the bytes are needed once, and the libraries that its inputs need."""
    if request.digest not in _terms and body is None:
        raise UnknownFunctionError
    try:
        if request.digest not in _terms:
            _terms[request.digest] = loads(body or b"")
            if len(_terms) > _LOADED:
                _terms.popitem(last=False)
        _terms.move_to_end(request.digest)
        for library in request.settings:
            importlib.import_module(library)
    except Exception as error:
        _terms.pop(request.digest, None)
        message = f"could not be loaded in a worker: {said(error)}"
        if isinstance(error, ModuleNotFoundError):
            message += "; functions of a script travel by value, but modules are imported by name: put it on the path"
        raise TermError(request.name, message) from error
    return _terms[request.digest]


def evaluate(term: Term, request: Request, arrays: Sequence[Any]) -> Packed:
    """In the worker: the evaluation, or the failure, packed."""
    process = os.getpid()
    try:
        with _applied(request.settings):
            inputs, wrt, step, state = loads(request.data, arrays)
            with waiting(wait_here):
                # In a context of its own, as in a thread: what a term sets there, as by np.seterr, ends with it.
                context = contextvars.copy_context()
                evaluation = context.run(evaluate_away, term, inputs, wrt, step=step, state=state)
            try:
                return dumps_data(_fields(evaluation))
            except Exception as error:
                message = f"its result cannot be sent to the caller: {said(error)}"
                raise TermError(term.name, message) from error
    except BaseException as error:
        # Even one that ends a program: it ends neither the worker nor the caller.
        return failed(request.name, error)
    finally:
        # A term may have forked; its child must not go on as a second worker.
        if os.getpid() != process:
            os._exit(0)


def failed(name: str, error: BaseException) -> Packed:
    """In the worker: an error in place of an evaluation."""
    return dumps_data(tuple(Failure.of(name, error)))


def opened(name: str, data: bytes, arrays: Sequence[Any]) -> Evaluation:
    """In the caller: the evaluation; raises the failure."""
    try:
        found: Any = loads_data(data, arrays)
        result = Evaluation(**cast("dict[str, Any]", found)) if isinstance(found, dict) else Failure(*found).error()
    except Exception as error:
        raise TermError(name, f"its result cannot be read here: {said(error)}") from error
    if isinstance(result, TermError):
        raise result
    return result


def _fields(evaluation: Evaluation) -> dict[str, Any]:
    """As a dict, which is data."""
    found = {field.name: getattr(evaluation, field.name) for field in dataclasses.fields(evaluation)}
    # Metrics may be a mappingproxy, which is not.
    found["metrics"] = dict(evaluation.metrics)
    if evaluation.gradient is not None:
        found["gradient"] = {
            name: {"hidden": part.hidden, "weight": part.weight, "bias": part.bias}
            if isinstance(part, Logits)
            else part
            for name, part in evaluation.gradient.items()
        }
    return found


@contextlib.contextmanager
def _applied(settings: Mapping[str, Any]) -> Generator[None]:
    with contextlib.ExitStack() as stack:
        if "torch" in settings:
            import torch

            torch.set_default_dtype(getattr(torch, settings["torch"]))
        if "jax" in settings:
            stack.enter_context(double_precision(settings["jax"]))
        yield


def _settings(libraries: frozenset[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if "torch" in libraries:
        import torch

        settings["torch"] = str(torch.get_default_dtype()).removeprefix("torch.")
    if libraries & {"jax", "jax key"}:
        import jax

        config: Any = jax.config
        settings["jax"] = bool(config.jax_enable_x64)
    return settings
