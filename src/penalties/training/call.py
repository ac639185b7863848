"""One call of `forward_backward_custom`: its arguments, checked at once, and the steps that it takes."""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, cast

import numpy as np

from ..errors import GradientError, InputError, MissingLibraryError, NonFiniteError, OptionError
from ..execution.executor import Executor
from ..functional.options import check_flag
from ..pipeline.announcing import numbered
from ..pipeline.gradients import measure
from ..pipeline.output import LossOutput
from ..pipeline.term import Weight
from ..telemetry import events
from .batch import Batch, logprobs_of
from .futures import mapped, resolve, result_of
from .merging import CustomLossFuture, merged
from .objective import Objective, objective_of
from .packing import FLAT, PACKED
from .references import Provider, checked
from .surrogates import FORWARD, Surrogate, forward_data, surrogate_of

__all__ = ["Call", "torch_module"]

_FUNCTION: Final = "forward_backward_custom"
_PARAMETERS: Final = "parameters"
"""Measure gradients at the trained parameters instead of at the inputs of the terms."""


class _Measures(NamedTuple):
    """What is measured of the terms' gradients."""

    norms: bool
    cosines: bool
    at_parameters: bool
    """At the parameters, rather than at the inputs of the terms."""

    @classmethod
    def of(cls, track_grad_norms: Any, cosines: Any) -> "_Measures":
        at_parameters = isinstance(track_grad_norms, str) and track_grad_norms == _PARAMETERS
        if not at_parameters:
            expected = f'True, False or "{_PARAMETERS}"'
            check_flag(_FUNCTION, "track_grad_norms", track_grad_norms, expected)
        check_flag(_FUNCTION, "cosines", cosines)
        return cls(bool(track_grad_norms) or bool(cosines), bool(cosines), at_parameters)


class Call:
    """One call. `begin`, the executor, `gradients` and `finish` follow one another inside `running`."""

    def __init__(
        self,
        client: Any,
        data: Any,
        loss_fn: Any,
        regularizers: Any,
        references: Any,
        track_grad_norms: Any,
        cosines: Any,
        executor: Any,
        timeout: float | None,
        server: str,
        *,
        evaluate: bool = False,
    ) -> None:
        """Check the arguments of the public functions; with `evaluate` there is no gradient and no backward."""
        self.evaluate: bool = evaluate
        self.measures: _Measures = _Measures.of(track_grad_norms, cosines)
        self.client: Any = client
        self.local: bool = hasattr(client, "forward_with_graph")
        for method in () if self.local else ("forward", "forward_backward"):
            if not callable(getattr(client, method, None)):
                raise InputError(f"{_FUNCTION}: the client, {type(client).__name__}, has no method {method}")
        if self.measures.at_parameters and not self.local:
            expected = "True: the parameters of a model on a server are not available here"
            raise OptionError(_FUNCTION, "track_grad_norms", _PARAMETERS, expected)
        self.surrogate: Surrogate = surrogate_of(server)
        self.batch: Batch = Batch.of(data)
        self.references: dict[str, Any]
        self.references, per_target = _references(references, self.batch)
        rows = self.batch.candidates is not None
        self.objective: Objective = objective_of(
            loss_fn, regularizers, per_target, timeout, rows=rows, local=self.local
        )
        self.batch.check(self.objective)
        if rows and not (self.surrogate.rows or self.local):
            raise InputError(
                f'datum 0: has {self.batch.candidates} targets per position; server="{server}" is sent its gradient '
                f"by {self.surrogate.loss_fn}, which takes one"
            )
        self.executor: Executor = _shared_executor() if executor is None else executor
        if not isinstance(cast("object", self.executor), Executor):
            raise OptionError(_FUNCTION, "executor", executor, "an Executor")
        self.leaves: dict[str, Any] = {}
        self.arrived: Future[Any] = Future()
        self.graph: Any = None
        inside = self.measures.norms and not self.measures.at_parameters
        self.wrt: list[str] | None = [PACKED, *self.objective.local] if inside else None
        self.cosines: bool = self.measures.cosines and inside
        self._step: Any = None
        self._tell: Callable[..., None] | None = None
        self._started: list[tuple[Any, Future[Any]]] = []
        self._sent = False

    # The frame: events, and what is undone if the call fails.

    @contextlib.contextmanager
    def running(
        self, weights: Mapping[str, Weight] | None, step: Any, state: Mapping[str, Any] | None
    ) -> Generator[dict[str, Any]]:
        """The duration of the call; yields the arguments of the executor, except for the inputs."""
        self._step = step
        with contextlib.ExitStack() as stack:
            # A handler that is attached in the middle of a call gets the events of the next one.
            if events.handlers:
                self._tell = self._announced(stack.enter_context(numbered()))
            try:
                yield {
                    "pipeline": self.objective.pipeline,
                    "wrt": self.wrt,
                    "weights": weights,
                    "step": step,
                    "state": state,
                    "cosines": self.cosines,
                }
            except BaseException as error:
                stack.close()
                self._undo()
                if self._tell is not None:
                    self._tell("exception", error=error)
                raise

    def _announced(self, number: Any) -> Callable[..., None]:
        """Emit the start of the call; returns a function that emits its end."""
        began = time.perf_counter()
        metadata: dict[str, Any] = {
            "model_id": getattr(self.client, "model_id", None),
            "data_count": len(self.batch.data),
            "regularizer_count": len(self.objective.pipeline),
            "track_grad_norms": self.measures.norms,
            "step": self._step,
            "call": number,
        }
        events.emit("custom_loss.start", {"time": time.time(), "monotonic_time": time.monotonic()}, metadata)

        def tell(event: str, measurements: Mapping[str, Any] | None = None, **more: Any) -> None:
            measured = {"duration": time.perf_counter() - began, **(measurements or {})}
            events.emit(f"custom_loss.{event}", measured, {**metadata, **more})

        return tell

    def _undo(self) -> None:
        """If nothing was trained, providers that count steps forget this one."""
        if not self._sent:
            for provider, started in self._started:
                if callable(getattr(provider, "undo", None)):
                    provider.undo(started)

    # The forward, and the inputs of the terms.

    def begin(self) -> dict[str, Any]:
        """Send the forward and request the references; returns the inputs of the terms, some of them futures."""
        torch = torch_module()
        pending: dict[str, Future[Any]] = {PACKED: self.arrived, **{name: Future() for name in self.objective.local}}
        if self.local and (self.objective.local or not self.evaluate):
            names = [name.removeprefix(FLAT) for name in self.objective.local]
            options = {"evaluate": True} if self.evaluate else {}
            forward = self.client.forward_with_graph(self.batch.data, reads=names, **options)
            read = self._from_graph
        else:
            forward = self.client.forward(forward_data(self.batch.data), FORWARD)
            read = self._from_output
        device = getattr(self.client, "device", "cpu") if self.local else "cpu"
        inputs: dict[str, Any] = {"data": self.batch.data, "lengths": self.batch.lengths, **pending}
        if "flat_mask" in self.objective.reads:
            inputs["flat_mask"] = torch.as_tensor(np.concatenate(self.batch.masks), device=device)
        for name, reference in self.references.items():
            # A reference that no term reads is not requested: that saves a forward.
            if {name, f"{FLAT}{name}"} & set(self.objective.reads):
                arrays = self._requested(name, reference) if _is_provider(reference) else reference
                inputs |= self._reference_inputs(name, arrays, device)
        resolve(pending, lambda: read(result_of(forward)))
        return {name: inputs[name] for name in {*self.objective.reads, *(self.wrt or ())}}

    def _requested(self, name: str, provider: Any) -> "Future[Any]":
        """The arrays of a provider, checked when they arrive."""
        started = provider.start(self.client, self.batch.data, step=self._step)
        if not isinstance(started, Future):
            kind = type(started).__name__
            raise InputError(f'reference "{name}": its provider returned {kind}; expected a concurrent.futures.Future')
        future = cast("Future[Any]", started)
        self._started.append((provider, future))
        return mapped(future, functools.partial(self._checked, name, provider))

    def _checked(self, name: str, provider: Any, arrays: Any) -> Any:
        found = checked(name, arrays, self.batch.data)
        if (not found[0].ndim) != bool(getattr(provider, "per_datum", False)):
            given = "one number per datum" if not found[0].ndim else "one number per target"
            raise InputError(f'reference "{name}": its provider returned {given}; check its per_datum')
        return found

    def _reference_inputs(self, name: str, arrays: Any, device: Any) -> dict[str, Any]:
        """A reference in the forms in which terms read it."""
        torch = torch_module()

        def tensors(found: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
            return [torch.as_tensor(array, device=device) for array in found]

        def packed(found: Sequence[np.ndarray[Any, Any]]) -> Any:
            return torch.as_tensor(np.concatenate(found), device=device)

        later = cast("Future[Any]", arrays) if isinstance(arrays, Future) else None
        forms: dict[str, Callable[[Any], Any]] = {name: tensors, f"{FLAT}{name}": packed}
        return {
            read: make(arrays) if later is None else mapped(later, make)
            for read, make in forms.items()
            if read in self.objective.reads
        }

    def _from_output(self, output: Any) -> dict[str, Any]:
        device = self.client.device if self.local else "cpu"
        flat = torch_module().as_tensor(np.concatenate(logprobs_of(output, self.batch)), device=device)
        return {PACKED: self._leaf(PACKED, flat)}

    def _from_graph(self, graph: Any) -> dict[str, Any]:
        self.graph = graph
        logprobs_of(graph.output, self.batch)
        found: dict[str, Any] = {PACKED: self._leaf(PACKED, graph.packed["logprobs"])}
        for name in self.objective.local:
            if name == "params":
                found[name] = {key: self._leaf(f"params/{key}", one) for key, one in graph.inputs["params"].items()}
            else:
                found[name] = self._leaf(name, graph.packed[name.removeprefix(FLAT)])
        return found

    def _leaf(self, name: str, array: Any) -> Any:
        """A tensor at which gradients end, detached from the model."""
        leaf = self.leaves[name] = array.detach().requires_grad_(not self.evaluate)
        return leaf

    # The gradient, and the backward.

    def gradients(self, output: LossOutput) -> tuple[LossOutput, dict[str, Any]]:
        """The output, measured if requested, and the gradient of the total at each tensor of the model."""
        # Terms that read nothing of the model have not waited for the forward.
        self.arrived.result()
        output = self._measured(output)
        for leaf in self.leaves.values():
            # Whatever a function left there by a backward of its own.
            leaf.grad = None
        if getattr(output.total, "requires_grad", False):
            output.total.backward()
        else:
            self._check_constant(output)
        found = {name: leaf.grad for name, leaf in self.leaves.items()}
        for name, gradient in found.items():
            if gradient is not None and not bool(gradient.isfinite().all()):
                kind = "nan" if bool(gradient.isnan().any()) else "inf"
                where = self._where(name, gradient)
                raise NonFiniteError(kind, f"{where}: the gradient of the loss is {kind}; nothing was sent")
        return output, found

    def _measured(self, output: LossOutput) -> LossOutput:
        """The output with the norm of each term's gradient at the parameters, if requested."""
        if not self.measures.at_parameters or not hasattr(output.total, "requires_grad"):
            return output
        names, leaves = list(self.leaves), list(self.leaves.values())

        def slopes(value: Any) -> list[Any]:
            found = torch_module().autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
            return list(self.graph.pulled(self._by_name(dict(zip(names, found, strict=True)))).values())

        count = len(self.graph.inputs["params"])
        return measure(output, slopes, count, "the parameters", cosines=self.measures.cosines)

    def _where(self, name: str, gradient: Any) -> str:
        """The datum or the parameter whose gradient is not finite."""
        if name.startswith("params/"):
            return f"the parameter {name.removeprefix('params/')}"
        parts = gradient.split(self.batch.lengths)
        index = next(index for index, part in enumerate(parts) if not bool(part.isfinite().all()))
        return f"datum {index}" if name == PACKED else f"datum {index}, {name.removeprefix(FLAT)}"

    def _check_constant(self, output: LossOutput) -> None:
        """Raise for a loss that reads the model but has no gradient: it would silently train nothing."""
        base = self.objective.pipeline.base
        for term in (*([] if base is None else [base]), *self.objective.pipeline.terms):
            found = output.base if term is base else output.terms.get(term.name)
            reads = {PACKED, *self.objective.local} & set(term.inputs.values())
            if found is not None and found.value is not None and reads and term.differentiable:
                raise GradientError(
                    f"{term.name}: its value has no gradient, so the model would learn nothing; compute it from the "
                    "tensors that it is given, without detach, item or no_grad, or set differentiable=False"
                )

    def finish(self, output: LossOutput, gradients: Mapping[str, Any]) -> CustomLossFuture:
        """Send the backward."""
        if self.graph is not None:
            sent = self.graph.submit(self._by_name(gradients))
        else:
            flat = gradients[PACKED]
            if flat is None:
                flat = torch_module().zeros_like(self.leaves[PACKED])
            arrays = [part.float().numpy() for part in flat.split(self.batch.lengths)]
            before = [part.numpy() for part in self.leaves[PACKED].detach().split(self.batch.lengths)]
            request = self.surrogate.data(self.batch.data, before, arrays)
            sent = self.client.forward_backward(request, self.surrogate.loss_fn)
        self._sent = True
        if self._tell is not None:
            totals = {
                "loss_total": output.total,
                "regularizer_total": output.regularizer_total,
                "total_grad_norm": output.total_grad_norm,
            }
            self._tell("stop", totals, output=output)
        return CustomLossFuture(sent, lambda result: merged(result, output))

    def _by_name(self, gradients: Mapping[str, Any]) -> dict[str, Any]:
        """The gradients as a graph takes them: packed, with those of the parameters in a dict."""
        made: dict[str, Any] = {"params": {}}
        for name, gradient in gradients.items():
            if name.startswith("params/"):
                made["params"][name.removeprefix("params/")] = gradient
            else:
                made[name.removeprefix(FLAT)] = gradient
        return made


def _references(given: Any, batch: Batch) -> tuple[dict[str, Any], dict[str, bool]]:
    """The references, those that are arrays checked, and whether each has one number per target."""
    if given is None:
        return {}, {}
    if not isinstance(given, Mapping):
        expected = "a dict from names to one array per datum, or to a provider"
        raise OptionError(_FUNCTION, "references", given, expected)
    found: dict[str, Any] = {}
    for name, reference in cast("Mapping[Any, Any]", given).items():
        if not isinstance(name, str):
            raise OptionError(_FUNCTION, "references", name, "names that are strings")
        found[name] = reference if _is_provider(reference) else checked(name, reference, batch.data)
    per_target = {
        name: not getattr(reference, "per_datum", False) if _is_provider(reference) else bool(reference[0].ndim)
        for name, reference in found.items()
    }
    return found, per_target


def _is_provider(reference: Any) -> bool:
    return isinstance(reference, Provider) and callable(reference.start)


_lock: Final = threading.Lock()
_shared: list[tuple[int, Executor]] = []


def _shared_executor() -> Executor:
    """The executor of calls that bring none: one per process, created when first needed."""
    with _lock:
        if not _shared or _shared[0][0] != os.getpid():
            _shared[:] = [(os.getpid(), Executor())]
        return _shared[0][1]


def torch_module() -> Any:
    """PyTorch, which computes the terms."""
    try:
        import torch
    except ImportError as error:
        raise MissingLibraryError(_FUNCTION, "torch", extra="torch") from error
    return torch
