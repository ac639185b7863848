"""Training with a loss of one's own through any client: forward, our terms, and the gradient sent back."""

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, cast

import numpy as np

from ..errors import GradientError, InputError, MissingLibraryError, NonFiniteError, OptionError
from ..execution.executor import Executor
from ..functional.options import check_flag
from ..pipeline.call import numbered
from ..pipeline.measuring import measured
from ..pipeline.output import LossOutput
from ..pipeline.term import Weight
from ..telemetry import events
from .batch import Batch, logprobs_of
from .futures import mapped, resolve, result_of
from .merging import CustomLossFuture, merged
from .objective import FLAT, PACKED, objective_of
from .references import Provider, checked
from .surrogates import FORWARD, forward_data, surrogate_of

__all__ = ["forward_backward_custom", "forward_backward_custom_async"]

_PARAMETERS: Final = "parameters"
"""Where gradients are measured instead of at what the terms read."""


def forward_backward_custom(
    client: Any,
    data: Sequence[Any],
    loss_fn: Any,
    *,
    regularizers: Any = (),
    references: Mapping[str, Any] | None = None,
    track_grad_norms: bool | str = False,
    weights: Mapping[str, Weight] | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    step: Any = None,
    state: Mapping[str, Any] | None = None,
    cosines: bool = False,
    server: str = "tinker",
) -> CustomLossFuture:
    """Train a client's model on `loss_fn + Σ weight·term`, all of them functions of its log-probabilities.

    `loss_fn(data, logprobs)` returns a loss, alone or with a dict of metrics, as for the SDK's own call; or it is the
    name of a loss, a `Term`, or None for regularizers alone. Terms read `data`, `logprobs` (one tensor per datum),
    `flat_logprobs` and `lengths`, `mask`, and every reference by its name; with a model in this process `params`,
    `logits` and `hidden.<layer>` too. `references` maps a name to one array per datum, or to a provider.

    The forward is awaited here, terms run where they say, and the call gives back when the backward has been sent, so
    that an `optim_step` sent next comes after it. `track_grad_norms` measures the gradient of each term at what it
    reads, or, on a model in this process, with "parameters" at what is trained, by a backward pass for each term;
    `cosines` those between them. The result is the client's own, with `.custom_loss`, the
    `LossOutput`, and its numbers among the metrics. Nothing runs on the client's event loop.

    >>> from penalties.training import AdamParams, Datum, LocalTrainingClient, ModelInput, forward_backward_custom
    >>> data = [Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})]
    >>> with LocalTrainingClient("tiny") as client:
    ...     passed = forward_backward_custom(client, data, "cross_entropy", regularizers=["l1"])
    ...     stepped = client.optim_step(AdamParams(learning_rate=1e-3))
    ...     passed.result().custom_loss.names
    ('base_loss', 'l1')
    """
    measures = _Measures.of(track_grad_norms, cosines)
    call = _Call(client, data, loss_fn, regularizers, references, measures, executor, timeout, server, step)
    with call, _torch().inference_mode(False), _torch().enable_grad():
        inputs = call.begin()
        output = call.executor.run(
            call.objective.pipeline, inputs, wrt=call.wrt, weights=weights, step=step, state=state, cosines=call.cosines
        )
        output = call.measured(output)
        return call.sent(call.linearised(output), output)


async def forward_backward_custom_async(
    client: Any,
    data: Sequence[Any],
    loss_fn: Any,
    *,
    regularizers: Any = (),
    references: Mapping[str, Any] | None = None,
    track_grad_norms: bool | str = False,
    weights: Mapping[str, Weight] | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    step: Any = None,
    state: Mapping[str, Any] | None = None,
    cosines: bool = False,
    server: str = "tinker",
) -> CustomLossFuture:
    """As `forward_backward_custom`, without blocking the event loop.

    Where the awaiting task is cancelled before the backward was sent, it is not sent.

    >>> import asyncio
    >>> from penalties.training import Datum, LocalTrainingClient, ModelInput, forward_backward_custom_async
    >>> async def step(client, data):
    ...     passed = await forward_backward_custom_async(client, data, "cross_entropy")
    ...     return (await passed).metrics["mean_nll"]
    >>> data = [Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})]
    >>> with LocalTrainingClient("tiny") as client:
    ...     asyncio.run(step(client, data)) > 0
    True
    """
    measures = _Measures.of(track_grad_norms, cosines)
    call = _Call(client, data, loss_fn, regularizers, references, measures, executor, timeout, server, step)
    if not _torch().is_grad_enabled():
        # A mode of this thread, which other tasks run in too: it is not ours to change while they do.
        raise GradientError("forward_backward_custom_async: was awaited inside torch.no_grad(); await it outside")
    with call:
        # In a thread: a provider of somebody else's may take its time.
        inputs = await asyncio.to_thread(call.begin)
        output = await call.executor.run_async(
            call.objective.pipeline, inputs, wrt=call.wrt, weights=weights, step=step, state=state, cosines=call.cosines
        )
        output = await asyncio.to_thread(call.measured, output)
        return call.sent(await asyncio.to_thread(call.linearised, output), output)


class _Measures(NamedTuple):
    """What is measured of the terms' gradients."""

    norms: bool
    cosines: bool
    at_parameters: bool
    """Of the parameters, and not of what the terms read."""

    @classmethod
    def of(cls, track_grad_norms: Any, cosines: Any) -> "_Measures":
        at_parameters = isinstance(track_grad_norms, str) and track_grad_norms == _PARAMETERS
        if not at_parameters:
            expected = f'True, False or "{_PARAMETERS}"'
            check_flag("forward_backward_custom", "track_grad_norms", track_grad_norms, expected)
        check_flag("forward_backward_custom", "cosines", cosines)
        return cls(bool(track_grad_norms) or bool(cosines), bool(cosines), at_parameters)


class _Call:
    """One call: what was asked, checked at once, and the steps that it takes."""

    def __init__(
        self,
        client: Any,
        data: Any,
        loss_fn: Any,
        regularizers: Any,
        references: Any,
        measures: _Measures,
        executor: Any,
        timeout: float | None,
        server: str,
        step: Any,
    ) -> None:
        self.client = client
        self.local = hasattr(client, "forward_with_graph")
        for method in () if self.local else ("forward", "forward_backward"):
            if not callable(getattr(client, method, None)):
                kind = type(client).__name__
                raise InputError(f"forward_backward_custom: the client, {kind}, has no method {method}; expected one")
        self.measures = measures
        if measures.at_parameters and not self.local:
            expected = "True: the parameters of a model on a server are not here"
            raise OptionError("forward_backward_custom", "track_grad_norms", _PARAMETERS, expected)
        self.surrogate = surrogate_of(server)
        self.batch = Batch.of(data)
        self.given, packable = _references(references, self.batch)
        rows = self.batch.candidates is not None
        self.objective = objective_of(loss_fn, regularizers, packable, timeout, rows=rows, local=self.local)
        self.batch.check(self.objective)
        if self.batch.candidates is not None and not (self.surrogate.rows or self.local):
            raise InputError(
                f'datum 0: has {self.batch.candidates} targets at each place; server="{server}" is sent its gradient '
                f"by {self.surrogate.loss_fn}, which takes one"
            )
        self.leaves: dict[str, Any] = {}
        self.arrived: Future[Any] = Future()
        self.graph: Any = None
        inside = measures.norms and not measures.at_parameters
        self.wrt = [PACKED, *self.objective.local] if inside else None
        self.cosines = measures.cosines and inside
        self.executor: Executor = _default() if executor is None else executor
        if not isinstance(cast("object", self.executor), Executor):
            raise OptionError("forward_backward_custom", "executor", executor, "an Executor")
        self._metadata: dict[str, Any] = {
            "model_id": getattr(client, "model_id", None),
            "data_count": len(self.batch.data),
            "regularizer_count": len(self.objective.pipeline),
            "track_grad_norms": measures.norms,
            "step": step,
        }
        self._began = 0.0
        self._started: list[tuple[Any, Future[Any]]] = []
        self._sent = False
        self._heard = False
        self._numbered = contextlib.ExitStack()

    # What others hear of it.

    def __enter__(self) -> "_Call":
        self._began = time.perf_counter()
        # Who attaches in the middle of a call hears of the next one.
        self._heard = len(events.handlers) > 0
        if self._heard:
            self._metadata["call"] = self._numbered.enter_context(numbered())
            started = {"time": time.time(), "monotonic_time": time.monotonic()}
            events.emit("custom_loss.start", started, self._metadata)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._numbered.close()
        if not self._sent:
            # Nothing was trained: providers that count steps forget this one.
            for provider, started in self._started:
                if callable(getattr(provider, "undo", None)):
                    provider.undo(started)
        if error is not None and self._heard:
            measured = {"duration": time.perf_counter() - self._began}
            events.emit("custom_loss.exception", measured, {**self._metadata, "error": error})

    def _told(self, output: LossOutput) -> None:
        if self._heard:
            measured = {
                "duration": time.perf_counter() - self._began,
                "loss_total": output.total,
                "regularizer_total": output.regularizer_total,
                "total_grad_norm": output.total_grad_norm,
            }
            events.emit("custom_loss.stop", measured, {**self._metadata, "output": output})

    # The forward, and what terms read.

    def begin(self) -> dict[str, Any]:
        """Send the forward and ask for the references; gives the inputs of the terms, some of them still to come."""
        torch = _torch()
        pending: dict[str, Future[Any]] = {PACKED: self.arrived, **{name: Future() for name in self.objective.local}}
        if self.local:
            asked = [name.removeprefix(FLAT) for name in self.objective.local]
            forward = self.client.forward_with_graph(self.batch.data, reads=asked)
            arrive = self._of_graph
        else:
            forward = self.client.forward(forward_data(self.batch.data), FORWARD)
            arrive = self._of_output
        device = getattr(self.client, "device", "cpu") if self.local else "cpu"
        inputs: dict[str, Any] = {"data": self.batch.data, "lengths": self.batch.lengths, **pending}
        if "flat_mask" in self.objective.reads:
            inputs["flat_mask"] = torch.as_tensor(np.concatenate(self.batch.masks), device=device)
        for name, reference in self.given.items():
            if not {name, f"{FLAT}{name}"} & set(self.objective.reads):
                # Nobody reads it: a forward less.
                continue
            if _provides(reference):
                started = reference.start(self.client, self.batch.data, step=self._metadata["step"])
                if not isinstance(started, Future):
                    kind = type(started).__name__
                    raise InputError(f'reference "{name}": its provider gave {kind}; expected a concurrent Future')
                made = mapped(cast("Future[Any]", started), functools.partial(self._provided, name, reference))
                self._started.append((reference, cast("Future[Any]", started)))
            else:
                made = reference
            inputs |= self._packed(name, made, device)
        resolve(pending, lambda: arrive(result_of(forward)))
        return {name: inputs[name] for name in {*self.objective.reads, *(self.wrt or ())}}

    def _provided(self, name: str, provider: Any, arrays: Any) -> Any:
        found = checked(name, arrays, self.batch.data)
        if (not found[0].ndim) != bool(getattr(provider, "per_datum", False)):
            given = "one number per datum" if not found[0].ndim else "one for each target"
            raise InputError(
                f'reference "{name}": its provider gave {given}; its attribute per_datum says which it gives'
            )
        return found

    def _packed(self, name: str, arrays: Any, device: Any) -> dict[str, Any]:
        """A reference in the forms that terms read it in."""
        torch = _torch()

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

    def _of_output(self, output: Any) -> dict[str, Any]:
        torch = _torch()
        flat = torch.as_tensor(np.concatenate(logprobs_of(output, self.batch)))
        return {PACKED: self._leaf(PACKED, flat)}

    def _of_graph(self, graph: Any) -> dict[str, Any]:
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
        """A tensor that gradients end at, without what is behind it."""
        leaf = self.leaves[name] = array.detach().requires_grad_()
        return leaf

    # The gradient, and the way back.

    def measured(self, output: LossOutput) -> LossOutput:
        """The output with the norms of each term's gradient at the parameters, where those were asked for."""
        if not self.measures.at_parameters or not hasattr(output.total, "requires_grad"):
            return output
        self.arrived.result()
        names, leaves = list(self.leaves), list(self.leaves.values())

        def slopes(value: Any) -> list[Any]:
            found = _torch().autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
            return list(self.graph.pulled(self._structured(dict(zip(names, found, strict=True)))).values())

        count = len(self.graph.inputs["params"])
        return measured(output, slopes, count, "the parameters", self.measures.cosines)

    def linearised(self, output: LossOutput) -> dict[str, Any]:
        """The gradient of the total at everything that terms were given of the model."""
        # Terms that read nothing of it have not waited for the forward.
        self.arrived.result()
        for leaf in self.leaves.values():
            # Whatever a function did to it on its own.
            leaf.grad = None
        if getattr(output.total, "requires_grad", False):
            output.total.backward()
        else:
            self._check_constant(output)
        gradients = {name: leaf.grad for name, leaf in self.leaves.items()}
        for name, gradient in gradients.items():
            if gradient is not None and not bool(gradient.isfinite().all()):
                kind = "nan" if bool(gradient.isnan().any()) else "inf"
                where = self._where(name, gradient)
                raise NonFiniteError(kind, f"{where}: the gradient of the loss is {kind} there; nothing was sent")
        return gradients

    def _where(self, name: str, gradient: Any) -> str:
        """Which datum, or which parameter."""
        if name.startswith("params/"):
            return f"the parameter {name.removeprefix('params/')}"
        parts = gradient.split(self.batch.lengths)
        place = next(place for place, part in enumerate(parts) if not bool(part.isfinite().all()))
        return f"datum {place}" if name == PACKED else f"datum {place}, {name.removeprefix(FLAT)}"

    def _check_constant(self, output: LossOutput) -> None:
        """Refuse a loss that reads of the model and has no gradient: the model would learn nothing, and nobody know."""
        base = self.objective.pipeline.base
        for term in (*([] if base is None else [base]), *self.objective.pipeline.terms):
            found = output.base if term is base else output.terms.get(term.name)
            reads = {PACKED, *self.objective.local} & set(term.inputs.values())
            if found is not None and found.value is not None and reads and term.differentiable:
                raise GradientError(
                    f"{term.name}: its value has no gradient, so that the model would learn nothing; compute it from "
                    "the tensors that it is given, without detach, item or no_grad, or say differentiable=False"
                )

    def sent(self, gradients: Mapping[str, Any], output: LossOutput) -> CustomLossFuture:
        """Send the backward."""
        if self.graph is not None:
            sent = self.graph.submit(self._structured(gradients))
        else:
            flat = gradients[PACKED]
            if flat is None:
                flat = _torch().zeros_like(self.leaves[PACKED])
            arrays = [part.float().numpy() for part in flat.split(self.batch.lengths)]
            before = [part.numpy() for part in self.leaves[PACKED].detach().split(self.batch.lengths)]
            request = self.surrogate.data(self.batch.data, before, arrays)
            sent = self.client.forward_backward(request, self.surrogate.loss_fn)
        self._sent = True
        self._told(output)
        return CustomLossFuture(sent, lambda result: merged(result, output))

    def _structured(self, gradients: Mapping[str, Any]) -> dict[str, Any]:
        """The gradients by name, as a graph takes them: packed as they are."""
        made: dict[str, Any] = {"params": {}}
        for name, gradient in gradients.items():
            if name.startswith("params/"):
                made["params"][name.removeprefix("params/")] = gradient
            else:
                made[name.removeprefix(FLAT)] = gradient
        return made


def _references(given: Any, batch: Batch) -> tuple[dict[str, Any], dict[str, bool]]:
    """The references, checked as far as they are there, and whether each has a number for each target."""
    if given is None:
        return {}, {}
    if not isinstance(given, Mapping):
        expected = "a dict from names to one array per datum, or to a provider"
        raise OptionError("forward_backward_custom", "references", given, expected)
    found: dict[str, Any] = {}
    for name, reference in cast("Mapping[Any, Any]", given).items():
        if not isinstance(name, str):
            raise OptionError("forward_backward_custom", "references", name, "names, each a string")
        found[name] = reference if _provides(reference) else checked(name, reference, batch.data)
    whole = {
        name: not getattr(reference, "per_datum", False) if _provides(reference) else bool(reference[0].ndim)
        for name, reference in found.items()
    }
    return found, whole


def _provides(reference: Any) -> bool:
    return isinstance(reference, Provider) and callable(reference.start)


_lock: Final = threading.Lock()
_shared: list[tuple[int, Executor]] = []


def _default() -> Executor:
    """The executor of calls that bring none: one for this process, made when it is first needed."""
    with _lock:
        if not _shared or _shared[0][0] != os.getpid():
            _shared[:] = [(os.getpid(), Executor())]
        return _shared[0][1]


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingLibraryError("forward_backward_custom", "torch", extra="torch") from error
    return torch
