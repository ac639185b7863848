"""A call over parts of a batch in one pass: each is forwarded, its share of every term computed, and pulled back."""

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, cast

import numpy as np

from .. import trees
from ..errors import GradientError, InputError, TermError, said
from ..pipeline import LossOutput, Pipeline, Term, TermOutput
from ..pipeline.announcing import Announcer, unannounced
from ..pipeline.call import is_due
from ..pipeline.gradients import with_gradients
from ..pipeline.output import BASE
from ..pipeline.weigh import check_weights, weight_of
from .call import Call, is_provider
from .futures import TrainingFuture
from .merging import merged_metrics
from .packing import FLAT, PACKED
from .reading import logprobs_of
from .separable import Rule, reads_likeliest
from .shares import Known

__all__ = ["Sweeping", "sweeping_of"]

Array = np.ndarray[Any, Any]


def sweeping_of(call: Call, step: Any) -> "Sweeping | None":
    """The call in one pass; None if the batch is one part, or a term needs the whole of it."""
    if call.evaluate or not callable(getattr(call.client, "sweep", None)):
        return None
    separation = call.objective.separation
    terms = {term.name: term for term in call.objective.pipeline.all_terms}
    if not separation.rules or any(_is_due(terms[name], step) for name in separation.whole):
        return None
    resting = {name for name in separation.rules if reads_likeliest(terms[name]) and not _is_due(terms[name], step)}
    wide = any(reads_likeliest(terms[name]) for name in separation.rules.keys() - resting)
    if call.wrt is not None and (wide or set(call.objective.local) - {"params"}):
        # The gradient of each term at logits or hidden states would be there for the whole batch.
        return None
    shares: dict[str, _Share] = {}
    for name, rule in separation.rules.items():
        if name in resting and not wide:
            continue
        mask = None if rule.mask is None else _mask(call, rule.mask)
        if mask is not None and (is_provider(mask) or any((one < 0).any() for one in mask)):
            # Not known yet; or the weights of a part may add up to 0, and it would be lost.
            return None
        shares[name] = _Share(rule, _counts(name, rule, Known(call.batch.data, call.batch.shapes, mask)))
    sweep = call.client.sweep(call.batch.data, together=separation.together, **call.requested)
    if sweep is None:
        return None
    if not wide:
        call.narrow()
    return Sweeping(call, sweep, shares)


def _is_due(term: Term, step: Any) -> bool:
    return step is None or is_due(term, step)


def _mask(call: Call, name: str) -> Any:
    return call.batch.masks if name == "mask" else call.references[name]


def _counts(term: str, rule: Rule, known: Known) -> Array:
    try:
        return rule.counts(known)
    except InputError as error:
        # As the term itself would raise it.
        raise TermError(term, f"raised {said(error)}") from error


class _Share(NamedTuple):
    """How much parts of a batch count for a term."""

    rule: Rule
    counts: Array
    """By datum."""

    def of(self, data: range) -> float:
        """The share of these data in a mean; where nothing counts, the first part stands for all."""
        total = float(self.counts.sum())
        if total == 0:
            return float(data.start == 0)
        return float(self.counts[data.start : data.stop].sum()) / total

    def of_value(self, data: range) -> float:
        """What the value of the term over these data is multiplied by."""
        return self.of(data) if self.rule.mean else 1.0


class _Part(NamedTuple):
    """A term over one part."""

    output: TermOutput
    factor: float
    """What its value is multiplied by."""
    share: float
    """What its metrics are."""


class Sweeping:
    """The passes of a call. Terms read parts of the batch; those that read only parameters and data run once."""

    def __init__(self, call: Call, sweep: Any, shares: Mapping[str, _Share]) -> None:
        """Nothing has run yet."""
        self.call = call
        self.sweep = sweep
        self.shares = shares
        self.stopped: threading.Event = threading.Event()
        """Set by a caller that no longer waits: nothing is sent then."""
        self._parts: dict[str, list[_Part]] = {}
        self._gradients: dict[str, list[dict[str, Any]]] = {}
        """Of each term at the leaves, part by part, or at the parameters, where norms are requested."""
        self._state: dict[str, Any] = {}
        self._has_gradient = False

    def run(self, arguments: Mapping[str, Any]) -> TrainingFuture[Any]:
        """Every part, one after another; returns the result of the call, once all is sent."""
        call, pipeline, step = self.call, cast("Pipeline", arguments["pipeline"]), arguments["step"]
        weights = check_weights(pipeline.names, arguments["weights"])
        weights = {term.name: weight_of(term, weights, step) for term in pipeline.all_terms if term.enabled}
        began = time.perf_counter()
        before = cast("Mapping[str, Any]", arguments["state"] or {})
        names = {term.name for term in pipeline.all_terms}
        self._state = {name: one for name, one in before.items() if name in names}
        given = {name: _arrived(one) for name, one in call.given().items()}
        if call.wide.counts:
            call.widen()
            self.sweep.replace(call.whole.data)
        with unannounced(pipeline, step):
            for data, graph in self.sweep:
                self._check_stopped()
                self._take(data, graph, given, weights, arguments)
                # Nothing of it may be alive when the next part goes through the model.
                call.graph, call.leaves = None, {}
                del graph
            output = self._output(pipeline, weights)
            if not self._has_gradient:
                call.check_constant(output)
            self._check_stopped()
        sent = self.sweep.finish()
        seconds = time.perf_counter() - began
        Announcer(traced=False).whole(pipeline, step, output, seconds, gradients=call.wrt is not None)
        return call.sent(sent, output)

    def _check_stopped(self) -> None:
        if self.stopped.is_set():
            raise GradientError("forward_backward_custom: was cancelled; nothing was sent")

    def _take(
        self,
        data: range,
        graph: Any,
        given: Mapping[str, Any],
        weights: Mapping[str, Any],
        arguments: Mapping[str, Any],
    ) -> None:
        """The terms over one part, and its backward."""
        call = self.call
        logprobs_of(graph.output, {index: call.whole.shapes[index] for index in data})
        leaves = call.leaves_of(call.tensors_of(graph))
        call.graph = graph
        factors = {name: share.of_value(data) for name, share in self.shares.items()}
        inputs = {**self._cut(given, data), **leaves}
        for name, logits in call.reference_logits(call.batch.data[data.start : data.stop]).items():
            inputs[name] = logits.result()
        outputs = self._evaluated({name: one for name, one in factors.items() if one}, inputs, weights, arguments)
        if data.start == 0:
            once = dict.fromkeys(call.objective.separation.once, 1.0)
            outputs += self._evaluated(once, {**given, **leaves}, weights, arguments, once=True)
        for output, _ in outputs:
            for term in output.all:
                share = self.shares[term.name].of(data) if term.name in self.shares else 1.0
                factor = factors.get(term.name, 1.0)
                self._parts.setdefault(term.name, []).append(_Part(_detached(term), factor, share))
                self._measure(term, factor, data)
        totals = [total for _, total in outputs if getattr(total, "requires_grad", False)]
        if call.backward(sum(totals) if totals else None):
            self._has_gradient = True
            graph.submit(call.gradient([output for output, _ in outputs], data))

    def _cut(self, given: Mapping[str, Any], data: range) -> dict[str, Any]:
        """The inputs of the terms for some data."""
        lengths = self.call.batch.lengths
        tokens = slice(sum(lengths[: data.start]), sum(lengths[: data.stop]))
        rows = slice(data.start, data.stop)
        return {name: one[tokens if name.startswith(FLAT) else rows] for name, one in given.items()}

    def _evaluated(
        self,
        factors: Mapping[str, float],
        inputs: Mapping[str, Any],
        weights: Mapping[str, Any],
        arguments: Mapping[str, Any],
        *,
        once: bool = False,
    ) -> list[tuple[LossOutput, Any]]:
        """The outputs of some terms, each multiplied by its factor, and their totals: the base loss by itself."""
        pipeline = self.call.objective.pipeline
        terms = [term for term in pipeline.terms if term.name in factors]
        scaled = {term.name: weights[term.name] * factors[term.name] for term in terms}
        found: list[tuple[LossOutput, Any]] = []
        if pipeline.base is not None and BASE in factors:
            base = self._run(Pipeline(base=pipeline.base), inputs, None, arguments, once=once)
            found.append((base, base.total * factors[BASE]))
        if terms:
            regularizers = self._run(Pipeline(terms), inputs, scaled, arguments, once=once)
            found.append((regularizers, regularizers.total))
        return found

    def _run(
        self,
        pipeline: Pipeline,
        inputs: Mapping[str, Any],
        weights: Mapping[str, Any] | None,
        arguments: Mapping[str, Any],
        *,
        once: bool,
    ) -> LossOutput:
        call = self.call
        wrt = call.wrt
        if once and wrt is not None:
            wrt = [name for name in wrt if name == "params"] or None
        read = {name for term in pipeline.all_terms for name in term.inputs.values()}
        output = call.executor.run(
            pipeline,
            {name: inputs[name] for name in {*read, *(wrt or ())}},
            wrt=wrt,
            weights=weights,
            step=arguments["step"],
            state=arguments["state"] if once else None,
            keep=wrt is not None,
        )
        if once:
            self._state |= output.state
        return output

    # Norms.

    def _measure(self, term: TermOutput, factor: float, data: range) -> None:
        """Keep the gradient of a term over one part, where norms are requested."""
        call = self.call
        kept = self._gradients.setdefault(term.name, [])
        if call.wrt is not None and term.gradient is not None:
            kept.append({"data": data, **trees.map_arrays(lambda one: one * factor, term.gradient)})
        if call.at_parameters and getattr(term.value, "requires_grad", False):
            flat = trees.flatten(call.leaves)
            slopes = call.torch.autograd.grad(term.value, flat.leaves, retain_graph=True, allow_unused=True)
            pulled = call.graph.pulled(call.wide.join(flat.rebuild(slopes)))
            before = kept.pop() if kept else dict.fromkeys(pulled)
            kept.append({name: _added(before[name], _scaled(one, factor)) for name, one in pulled.items()})

    def _measured(self, output: LossOutput) -> LossOutput:
        """The output with norms and cosines, where they are requested."""
        call = self.call
        if call.at_parameters:
            names = list(call.client.parameters())
            none = dict.fromkeys(names)
            found = [[(self._gradients[one.name] or [none])[0][name] for name in names] for one in output.all]
            return with_gradients(output, found, len(names), "the parameters", cosines=call.cosines, structure=None)[0]
        if call.wrt is None:
            return output
        names = list(call.client.parameters()) if "params" in call.wrt else []
        found = [self._at_inputs(one.name, names) for one in output.all]
        measured, total = with_gradients(
            output, found, 1 + len(names), ", ".join(call.wrt), cosines=call.cosines, structure=None
        )
        return self._by_input(output, measured, found, total, names)

    def _at_inputs(self, term: str, names: Sequence[str]) -> list[Any]:
        """The gradient of a term over the batch at the log-probabilities, and at each parameter."""
        kept, lengths = self._gradients[term], self.call.batch.lengths
        by_part = {one["data"].start: one[PACKED] for one in kept if one.get(PACKED) is not None}
        whole: Any = None
        if by_part:
            like = next(iter(by_part.values()))
            whole = like.new_zeros((sum(lengths), *like.shape[1:]))
            for start, gradient in by_part.items():
                first = sum(lengths[:start])
                whole[first : first + len(gradient)] = gradient
        sums: dict[str, Any] = dict.fromkeys(names)
        for one in kept:
            for name, gradient in cast("Mapping[str, Any]", one.get("params") or {}).items():
                sums[name] = _added(sums[name], gradient)
        return [whole, *sums.values()]

    def _by_input(
        self,
        output: LossOutput,
        measured: LossOutput,
        found: Sequence[Sequence[Any]],
        total: Sequence[Any],
        names: Sequence[str],
    ) -> LossOutput:
        """The output with the norms of each term at each input by itself, and the gradient of the total."""
        norm = self.call.torch.linalg.vector_norm

        def norms(gradients: Sequence[Any]) -> dict[str, Any]:
            own = {PACKED: gradients[:1], "params": gradients[1:]}
            there = {name: [one for one in some if one is not None] for name, some in own.items()}
            return {
                name: norm(self.call.torch.stack([norm(one.float()) for one in some]))
                for name, some in there.items()
                if some
            }

        several = bool(names)
        terms = [
            dataclasses.replace(
                one,
                grad_norms=norms(gradients) if several else {},
                grad_error=None if one.grad_norm is not None else before.grad_error or one.grad_error,
            )
            for before, one, gradients in zip(output.all, measured.all, found, strict=True)
        ]
        base = terms.pop(0) if measured.base is not None else None
        parameters = self.call.client.parameters()
        at_params = {
            name: self.call.torch.zeros_like(parameters[name]) if one is None else one
            for name, one in zip(names, total[1:], strict=True)
        }
        rows = (sum(self.call.batch.lengths), *self.call.batch.shapes[0][1:])
        packed = self.call.torch.zeros(rows, device=self.call.device) if total[0] is None else total[0]
        gradient = {PACKED: packed, **({"params": at_params} if several else {})}
        return dataclasses.replace(measured, terms={term.name: term for term in terms}, base=base, gradient=gradient)

    # The output.

    def _output(self, pipeline: Pipeline, weights: Mapping[str, Any]) -> LossOutput:
        terms = [self._term(term, weights) for term in pipeline.all_terms if term.name in self._parts]
        base = terms.pop(0) if pipeline.base is not None and terms and terms[0].name == BASE else None
        output = dataclasses.replace(LossOutput.of(terms, base=base), state=self._state)
        return self._measured(output)

    def _term(self, term: Term, weights: Mapping[str, Any]) -> TermOutput:
        """A term over the batch."""
        parts = self._parts[term.name]
        first = parts[0].output
        if first.value is None:
            return first
        share = self.shares.get(term.name)
        metrics = first.metrics
        if share is not None:
            metrics = merged_metrics(
                term.name, share.rule, [(one.output.metrics, one.factor, one.share) for one in parts]
            )
        durations = [one.output.duration for one in parts if one.output.duration is not None]
        return TermOutput(
            term.name,
            sum(one.output.value * one.factor for one in parts),
            1.0 if term.name == BASE else weights[term.name],
            grad_error=first.grad_error,
            metrics=metrics,
            duration=sum(durations) if durations else None,
        )


def _arrived(given: Any) -> Any:
    """An input that may still be a future."""
    return cast("Future[Any]", given).result() if isinstance(given, Future) else given


def _detached(term: TermOutput) -> TermOutput:
    value = term.value.detach() if hasattr(term.value, "detach") else term.value
    return dataclasses.replace(term, value=value, gradient=None)


def _scaled(gradient: Any, factor: float) -> Any:
    return None if gradient is None else gradient * factor


def _added(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b
