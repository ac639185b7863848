"""One call of `forward_backward_custom`: its arguments, checked at once, and the steps that it takes."""

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast

import numpy as np

from .. import trees
from ..arrays import Logits
from ..errors import GradientError, InputError, NonFiniteError, OptionError
from ..execution.executor import Executor
from ..functional.options import check_flag
from ..pipeline.announcing import numbered
from ..pipeline.gradients import measure
from ..pipeline.output import LossOutput
from ..pipeline.term import Weight
from ..telemetry import events
from .batch import Batch
from .futures import TrainingFuture, in_thread, mapped, resolve, resolved, result_of
from .libraries import library
from .merging import merged
from .objective import FUNCTION, Objective, objective_of
from .packing import FLAT, LOGITS, LOGPROBS, PACKED
from .references import Provider, checked, checked_likeliest
from .sdk import data_for
from .surrogates import FORWARD, Surrogate, forward_data, surrogate_of
from .widening import Widening, top_k_of

__all__ = ["Call", "is_provider"]

_PARAMETERS: Final = "parameters"
"""Measure gradients at the trained parameters instead of at the inputs of the terms."""


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
        self.torch: Any = library(FUNCTION, "torch", "torch")
        self.evaluate: bool = evaluate
        self.at_parameters: bool = isinstance(track_grad_norms, str) and track_grad_norms == _PARAMETERS
        if not self.at_parameters:
            check_flag(FUNCTION, "track_grad_norms", track_grad_norms, f'True, False or "{_PARAMETERS}"')
        check_flag(FUNCTION, "cosines", cosines)
        self.norms: bool = bool(track_grad_norms or cosines)
        self.cosines: bool = bool(cosines)
        self.client: Any = client
        self.local: bool = hasattr(client, "forward_with_graph")
        self.device: Any = getattr(client, "device", "cpu") if self.local else "cpu"
        for method in () if self.local else ("forward", "forward_backward"):
            if not callable(getattr(client, method, None)):
                raise InputError(f"{FUNCTION}: the client, {type(client).__name__}, has no method {method}")
        if self.at_parameters and not self.local:
            expected = "True: the parameters of a model on a server are not available here"
            raise OptionError(FUNCTION, "track_grad_norms", _PARAMETERS, expected)
        self.surrogate: Surrogate = surrogate_of(server)
        self.batch: Batch = Batch.of(data)
        self.references: dict[str, Any] = _references(references, self.batch)
        self.objective: Objective = objective_of(
            loss_fn,
            regularizers,
            {name: _per_target(reference) for name, reference in self.references.items()},
            timeout,
            candidates=self.batch.candidates,
            local=self.local,
            top_k=[name for name, reference in self.references.items() if top_k_of(reference) is not None],
        )
        self.wide: Widening = Widening.of(self.objective.reads, self.references)
        self.whole: Batch = self.batch
        """What goes through the model: the batch, perhaps with more targets."""
        several = self.wide.targets if self.wide.counts else self.batch.candidates
        if several is not None and not (self.surrogate.rows or self.local):
            raise InputError(
                f'datum 0: has {several} targets per position; server="{server}" is sent its gradient '
                f"by {self.surrogate.loss_fn}, which takes one"
            )
        self.executor: Executor = _shared_executor(os.getpid()) if executor is None else executor
        if not isinstance(cast("object", self.executor), Executor):
            raise OptionError(FUNCTION, "executor", executor, "an Executor")
        self.wrt: list[str] | None = self._wrt()
        self.arrived: Future[Any] = Future()
        self.graph: Any = None
        self.leaves: dict[str, Any] = {}
        """The tensors of the model at which gradients end, by the names that a graph has for them."""
        self._step: Any = None
        self._tell: Callable[..., None] | None = None
        self._started: list[tuple[Any, Future[Any]]] = []
        self._likeliest: dict[str, Future[Any]] = {}
        """What references with `top_k` have."""
        self._sent = False

    def _wrt(self) -> list[str] | None:
        if not self.norms or self.at_parameters:
            return None
        return [PACKED, *self.wide.inputs, *self.objective.local]

    def widen(self) -> None:
        """Wait for the likeliest tokens of references that terms read, and add them to the targets."""
        if self.wide.counts:
            self.whole = self.wide.batch(self.batch, {name: one.result() for name, one in self._likeliest.items()})

    def narrow(self) -> None:
        """Leave out the likeliest tokens of references: no term of this step reads them."""
        self.wide = Widening({})
        self.wrt = self._wrt()

    # The frame: events, and what is undone if the call fails.

    @contextlib.contextmanager
    def running(
        self, weights: Mapping[str, Weight] | None, step: Any, state: Mapping[str, Any] | None
    ) -> Generator[dict[str, Any]]:
        """The duration of the call; yields the arguments of the executor, except for the inputs."""
        self._step = step
        try:
            # A handler that is attached in the middle of a call gets the events of the next one.
            with numbered() if events.handlers else contextlib.nullcontext() as number:
                if number is not None:
                    self._announce(number)
                yield {
                    "pipeline": self.objective.pipeline,
                    "wrt": self.wrt,
                    "weights": weights,
                    "step": step,
                    "state": state,
                    "cosines": self.cosines and self.wrt is not None,
                }
        except BaseException as error:
            if not self._sent:
                # Nothing was trained: providers that count steps forget this one.
                for provider, started in self._started:
                    if callable(getattr(provider, "undo", None)):
                        provider.undo(started)
            if self._tell is not None:
                self._tell("exception", error=error)
            raise

    def _announce(self, number: int) -> None:
        """Emit the start of the call, and prepare to emit its end."""
        began = time.perf_counter()
        metadata: dict[str, Any] = {
            "model_id": getattr(self.client, "model_id", None),
            "data_count": len(self.batch.data),
            "regularizer_count": len(self.objective.pipeline),
            "track_grad_norms": self.norms,
            "step": self._step,
            "call": number,
        }
        events.emit("custom_loss.start", {"time": time.time(), "monotonic_time": time.monotonic()}, metadata)

        def tell(event: str, measurements: Mapping[str, Any] | None = None, **more: Any) -> None:
            measured = {"duration": time.perf_counter() - began, **(measurements or {})}
            events.emit(f"custom_loss.{event}", measured, {**metadata, **more})

        self._tell = tell

    # The forward, and the inputs of the terms.

    @property
    def requested(self) -> dict[str, Any]:
        """What a forward of a model in this process is asked for."""
        names = [name.removeprefix(FLAT) for name in self.objective.local]
        # With norms one gradient would be formed for all terms over lazy logits, and there would be no norm of each.
        return {"reads": names, **({"lazy": True} if "logits" in names and not self.norms else {})}

    def begin(self) -> dict[str, Any]:
        """Send the forward and request the references; returns the inputs of the terms, some of them futures."""
        others = (*self.wide.inputs, *self.objective.local)
        pending: dict[str, Future[Any]] = {PACKED: self.arrived, **{name: Future() for name in others}}
        on_graph = self.local and bool(self.objective.local or not self.evaluate)
        options = {"evaluate": True} if self.evaluate else {}

        def send() -> Any:
            if on_graph:
                return self.client.forward_with_graph(self.whole.data, **self.requested, **options)
            return self.client.forward(data_for(self.client, forward_data(self.whole.data)), FORWARD)

        # Now, unless its targets are yet to come.
        forward = None if self.wide.counts else send()
        inputs: dict[str, Any] = {**self.given(), **pending, **self.reference_logits(self.batch.data)}

        def leaves() -> dict[str, Any]:
            self.widen()
            found = result_of(send() if forward is None else forward)
            return self.leaves_of(self._from_graph(found) if on_graph else self._from_output(found))

        resolve(pending, leaves)
        return {name: inputs[name] for name in {*self.objective.reads, *(self.wrt or ())}}

    def given(self) -> dict[str, Any]:
        """The inputs of the terms that need no forward of the model, some of them futures."""
        inputs: dict[str, Any] = {"data": self.batch.data, "lengths": self.batch.lengths}
        if "flat_mask" in self.objective.reads:
            inputs["flat_mask"] = self._tensor(np.concatenate(self.batch.masks))
        for name, reference in self.references.items():
            forms: dict[str, Callable[[Any], Any]] = {
                name: lambda arrays: [self._tensor(array) for array in arrays],
                f"{FLAT}{name}": lambda arrays: self._tensor(np.concatenate(arrays)),
            }
            wanted = {form: make for form, make in forms.items() if form in self.objective.reads}
            # A reference that no term reads is not requested: that saves a forward.
            if wanted or name in self.wide.counts:
                arrays = self._requested(name, reference) if is_provider(reference) else resolved(reference)
                if top_k_of(reference) is not None:
                    self._likeliest[name] = arrays
                    arrays = mapped(arrays, lambda pairs: [logprobs for _, logprobs in pairs])
                inputs |= {form: mapped(arrays, make) for form, make in wanted.items()}
        return inputs

    def reference_logits(self, data: Sequence[Any]) -> dict[str, "Future[Any]"]:
        """The logits of references that terms read, for some data, packed; by the names of the inputs."""
        return {
            form: self._logits(name, reference, data)
            for name, reference in self.references.items()
            if (form := f"{FLAT}{name}{LOGITS}") in self.objective.reads
        }

    def _tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return self.torch.as_tensor(array, device=self.device)

    def _requested(self, name: str, provider: Any) -> "Future[Any]":
        """The arrays of a provider, checked when they arrive."""
        started = provider.start(self.client, self.batch.data, step=self._step)
        if not isinstance(started, Future):
            kind = type(started).__name__
            raise InputError(f'reference "{name}": its provider returned {kind}; expected a concurrent.futures.Future')
        future = cast("Future[Any]", started)
        self._started.append((provider, future))

        def check(arrays: Any) -> Any:
            count = top_k_of(provider)
            if count is not None:
                return checked_likeliest(name, arrays, self.batch.data, count)
            found = checked(name, arrays, self.batch.data)
            if _per_target(found) != _per_target(provider):
                given = "one number per target" if _per_target(found) else "one number per datum"
                raise InputError(f'reference "{name}": its provider returned {given}; check its per_datum')
            return found

        return mapped(future, check)

    def _logits(self, name: str, reference: Any, data: Sequence[Any]) -> "Future[Any]":
        """The logits of a reference; lazy only if those of the model are, so that a term reads one kind."""
        if not callable(getattr(reference, "logits", None)):
            raise InputError(
                f'reference "{name}": has no logits; expected references.initial() or references.client(teacher)'
            )
        return mapped(reference.logits(self.client, data, lazy=not self.norms), self._moved)

    def _moved(self, logits: Any) -> Any:
        """Logits on the device of the model."""
        if not isinstance(logits, Logits):
            return logits.to(self.device)
        bias = None if logits.bias is None else logits.bias.to(self.device)
        return Logits(logits.hidden.to(self.device), logits.weight.to(self.device), bias, logits.softcap)

    def _from_output(self, output: Any) -> dict[str, Any]:
        return self.wide.split(self._tensor(np.concatenate(self.whole.logprobs(output))))

    def _from_graph(self, graph: Any) -> dict[str, Any]:
        self.graph = graph
        self.whole.logprobs(graph.output)
        return self.tensors_of(graph)

    def logprobs(self) -> list[np.ndarray[Any, Any]]:
        """What the forward returned, one array per datum, once it has arrived."""
        self.arrived.result()
        flat = self.leaves[LOGPROBS].detach().float().cpu()
        return [part.numpy() for part in flat.split(self.batch.lengths)]

    def tensors_of(self, graph: Any) -> dict[str, Any]:
        """The tensors of a graph, by the names of the inputs."""
        tensors = {**graph.packed, "params": graph.inputs["params"]}
        local = {name: tensors[name.removeprefix(FLAT)] for name in self.objective.local}
        return {**self.wide.split(tensors[LOGPROBS]), **local}

    def leaves_of(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors, detached from the model."""

        def leaf(one: Any) -> Any:
            return one.detach().requires_grad_(not self.evaluate)

        def leaves(given: Any) -> Any:
            if not isinstance(given, Logits):
                return trees.map_arrays(leaf, given)
            # An output layer that is frozen stays so.
            layer = trees.map_arrays(lambda one: leaf(one) if one.requires_grad else one, given)
            return layer.with_hidden(leaf(given.hidden))

        found = {name: leaves(given) for name, given in tensors.items()}
        self.leaves = {name.removeprefix(FLAT): leaf for name, leaf in found.items()}
        return found

    # The gradient, and the backward.

    def gradients(self, output: LossOutput) -> tuple[LossOutput, dict[str, Any]]:
        """The output, measured if requested, and the gradient of the total at each tensor of the model."""
        # Terms that read nothing of the model have not waited for the forward.
        self.arrived.result()
        output = self._measured(output)
        if not self.backward(output.total):
            self.check_constant(output)
        return output, self.gradient([output], range(len(self.batch.data)))

    def backward(self, total: Any) -> bool:
        """Propagate a loss to the leaves; False if it has no gradient."""
        for leaf in trees.arrays(self.leaves):
            # Whatever a function left there by its own backward.
            leaf.grad = None
        if not getattr(total, "requires_grad", False):
            return False
        total.backward()
        return True

    def gradient(self, outputs: Sequence[LossOutput], data: range) -> dict[str, Any]:
        """The gradient at each tensor of the model, checked; `data` are those that the leaves are about."""
        found: dict[str, Any] = trees.map_arrays(lambda leaf: leaf.grad, self.leaves)
        self._check_finite(found, outputs, data)
        return self.wide.join(found)

    def _measured(self, output: LossOutput) -> LossOutput:
        """The output with the norm of each term's gradient at the parameters, if requested."""
        if not self.at_parameters or not hasattr(output.total, "requires_grad"):
            return output
        flat = trees.flatten(self.leaves)

        def slopes(value: Any) -> list[Any]:
            found = self.torch.autograd.grad(value, flat.leaves, retain_graph=True, allow_unused=True)
            return list(self.graph.pulled(self.wide.join(flat.rebuild(found))).values())

        count = len(self.graph.inputs["params"])
        return measure(output, slopes, count, "the parameters", cosines=self.cosines)

    def _check_finite(self, gradients: Mapping[str, Any], outputs: Sequence[LossOutput], data: range) -> None:
        for name, found in gradients.items():
            at = found if name == "params" else {name: found}
            if isinstance(found, Logits):
                at = {name: found.hidden, "the weight of the output layer": found.weight, "its bias": found.bias}
            for part, gradient in at.items():
                if gradient is None or bool(gradient.isfinite().all()):
                    continue
                where = f"the parameter {part}" if name == "params" else part
                if part == name:
                    pieces = gradient.split([self.batch.lengths[index] for index in data])
                    index = next(i for i, piece in zip(data, pieces, strict=True) if not bool(piece.isfinite().all()))
                    where = f"datum {index}" if name == LOGPROBS else f"datum {index}, {name}"
                kind = "nan" if bool(gradient.isnan().any()) else "inf"
                terms = [one for output in outputs for one in output.read().all]
                norms = {one.name: one.grad_norm for one in terms if one.grad_norm is not None}
                # Known where norms are measured.
                term = next((term for term, norm in norms.items() if not math.isfinite(norm)), None)
                message = f"{where}: the gradient of the loss is {kind}; nothing was sent"
                raise NonFiniteError(kind, message, term, "gradient")

    def check_constant(self, output: LossOutput) -> None:
        """Raise for a loss that reads the model but has no gradient: it would silently train nothing."""
        pipeline = self.objective.pipeline
        for term in pipeline.all_terms:
            found = output.base if term is pipeline.base else output.terms.get(term.name)
            reads = {PACKED, *self.wide.inputs, *self.objective.local} & set(term.inputs.values())
            if found is not None and found.value is not None and reads and term.differentiable:
                raise GradientError(
                    f"{term.name}: its value has no gradient, so the model would learn nothing; compute it from the "
                    "tensors that it is given, without detach, item or no_grad, or set differentiable=False"
                )

    def finish(self, output: LossOutput, gradients: Mapping[str, Any]) -> TrainingFuture[Any]:
        """Send the backward."""
        if self.graph is not None:
            sent = self.graph.submit(gradients)
        else:
            leaf = self.wide.join(self.leaves)[LOGPROBS]
            slope = self.torch.zeros_like(leaf) if gradients[LOGPROBS] is None else gradients[LOGPROBS]
            before, arrays = (
                [part.float().numpy() for part in flat.split(self.batch.lengths)] for flat in (leaf.detach(), slope)
            )
            request = self.surrogate.data(self.whole.data, before, arrays)
            sent = self.client.forward_backward(data_for(self.client, request), self.surrogate.loss_fn)
        return self.sent(sent, output)

    def sent(self, sent: Any, output: LossOutput) -> TrainingFuture[Any]:
        """The result of the call, once the backward has been sent."""
        self._sent = True
        if self._tell is not None:
            totals = {
                "loss_total": output.total,
                "regularizer_total": output.regularizer_total,
                "total_grad_norm": output.total_grad_norm,
            }
            self._tell("stop", totals, output=output)
        return TrainingFuture(in_thread(lambda: merged(result_of(sent), output)))


def _references(given: Any, batch: Batch) -> dict[str, Any]:
    """The references, those that are arrays checked."""
    if given is not None and not isinstance(given, Mapping):
        expected = "a dict from names to one array per datum, or to a provider"
        raise OptionError(FUNCTION, "references", given, expected)
    found: dict[str, Any] = {}
    for name, reference in cast("Mapping[Any, Any]", given or {}).items():
        if not isinstance(name, str):
            raise OptionError(FUNCTION, "references", name, "names that are strings")
        found[name] = reference if is_provider(reference) else checked(name, reference, batch.data)
    return found


def is_provider(reference: Any) -> bool:
    """Whether a reference is still to be made."""
    return isinstance(reference, Provider) and callable(reference.start)


def _per_target(reference: Any) -> bool:
    """Whether a reference has one number per target, rather than one per datum."""
    return not getattr(reference, "per_datum", False) if is_provider(reference) else bool(reference[0].ndim)


@functools.cache
def _shared_executor(process: int) -> Executor:
    """The executor of calls that bring none: one per process, created when first needed."""
    return Executor()
