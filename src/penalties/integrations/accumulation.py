"""A pipeline over the micro-batches of optimizer steps: what every adapter for a trainer calls."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import trees
from ..backends import owner
from ..errors import OptionError
from ..pipeline import LossOutput, Pipeline, Term, TermOutput
from ..pipeline.announcing import Announcer, unannounced
from ..pipeline.gradients import with_norms
from ..pipeline.inputs import prepared
from ..pipeline.kinds import is_mapping, is_row
from ..pipeline.output import BASE
from ..pipeline.scope import PARAMS, scope_of
from ..pipeline.term import Scope
from ..pipeline.weigh import weight_of
from .scope import MicroBatch

__all__ = ["Accumulation"]


class Accumulation:
    """Evaluates a pipeline on one micro-batch after the other, scales each term by its scope, and adds up the step.

    `add` returns the loss of a micro-batch, and `finish` ends the step and returns its output: each term over all
    micro-batches, as its scope says. Terms of scope "step" run in the first micro-batch alone. Every micro-batch starts
    from the state that the step started with; afterwards numbers in it are averaged as a term of scope "mean" is, and
    anything else is that of the last micro-batch. `announce` emits the events of the step, as those of one call.

    A term that was skipped in some micro-batches is the mean over the others, or their sum.

    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="x"), pn.Term(pn.l2, inputs="params")])
    >>> step = Accumulation(pipeline)
    >>> for x in (1.0, 2.0):
    ...     print(float(step.add({"x": np.array([x]), "params": np.ones(2)}, MicroBatch(2))))
    3.0
    2.0
    >>> step.finish().metrics()
    {'l1': 3.0, 'l1_weighted': 3.0, 'l2': 2.0, 'l2_weighted': 2.0, 'total': 5.0}
    """

    pipeline: Pipeline
    state: Mapping[str, Any]
    """The state of the stateful terms, as of the last step that was finished. Assign saved state to resume."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Start without state."""
        self.pipeline = pipeline
        self.state = {}
        self._scopes: dict[str, Scope | None] | None = None
        self._later = pipeline
        """The terms that run in every micro-batch."""
        self._done: list[tuple[LossOutput, MicroBatch]] = []
        self._measured: LossOutput | None = None
        """The micro-batch of which norms were taken, with the trainer's loss as its base."""
        self._step: Any = None
        self._began = 0.0
        self._announced = False
        """Whether the step was one call, with events of its own."""

    def start(self) -> None:
        """Forget micro-batches of a step that was not finished."""
        self._done.clear()
        self._measured = None

    def add(
        self,
        inputs: Mapping[str, Any],
        batch: MicroBatch,
        *,
        weights: Mapping[str, Any] | None = None,
        step: Any = None,
        measure: Callable[[LossOutput, Mapping[str, Scope | None]], LossOutput] | None = None,
    ) -> Any:
        """The loss of one more micro-batch, for the trainer's backward.

        `measure` is given its output, and the scopes of the terms, and returns it with norms: those of the step.
        """
        inputs = prepared(dict(inputs))
        if self._scopes is None:
            self._scopes = {term.name: _resolved(term, inputs) for term in self.pipeline.all_terms}
            always = [term for term in self.pipeline if self._scopes[term.name] != "step"]
            self._later = Pipeline(always, base=self.pipeline.base, name=self.pipeline.name)
        scopes = self._scopes
        if not batch.alone:
            _check_known(self.pipeline, scopes, batch)
        pipeline = self._later if self._done else self.pipeline
        factors = {term.name: batch.factor(scopes[term.name] or "mean") for term in pipeline.all_terms}
        scaled = {} if weights is None else dict(weights)
        for term in pipeline:
            if not _is_one(factors[term.name]):
                scaled[term.name] = weight_of(term, weights or {}, step) * factors[term.name]
        if self._done:
            # What only terms of scope "step" read.
            inputs = {n: x for n, x in inputs.items() if n in pipeline.reads or n not in self.pipeline.reads}
            scaled = {name: weight for name, weight in scaled.items() if name in pipeline}
        if not self._done:
            self._step, self._began = step, time.perf_counter()
        # Where the trainer brings the base loss, the total of a call is not that of the step; nor are there norms yet.
        self._announced = batch.alone and self.pipeline.base is not None and measure is None
        with contextlib.nullcontext() if self._announced else unannounced(pipeline, step):
            output = pipeline(weights=scaled, step=step, state=self.state, **inputs)
            total = output.total
            if output.base is not None and output.base.value is not None and not _is_one(factors[BASE]):
                total = output.base.value * factors[BASE] + output.regularizer_total
            if self._done and not pipeline.all_terms:
                # In the library of the first: a pipeline without terms has seen no array.
                like = self._done[0][0].total
                ops = owner(like)
                total = total if ops is None else ops.zero(like)
            if not batch.alone:
                output = _unscaled(output, pipeline, weights or {}, step)
            if measure is not None:
                self._measured = _detached(measure(output, scopes))
            self._done.append((_detached(output), batch))
        return total

    def discard(self) -> None:
        """Take back the last micro-batch, whose loss the trainer leaves out; the next one may be the first again."""
        self._done.pop()
        if not self._done:
            # Norms are those of the first.
            self._measured = None

    def finish(self, base: Any = None, average: Callable[[Any], Any] | None = None) -> LossOutput:
        """The output of the step, which ends here; its values are this rank's part, whose mean over ranks is the term.

        `base` is the loss that the trainer computed itself. `average` returns the mean of an array over ranks, for
        the state.
        """
        alone = len(self._done) == 1 and self._done[0][1].alone
        output = self._whole(base) if alone else self._summed(base, average)
        measured = self._measured
        self.start()
        return output if measured is None else with_norms(output, measured)

    def _summed(self, base: Any, average: Callable[[Any], Any] | None) -> LossOutput:
        """The output of a step of several micro-batches or ranks."""
        # A trainer may leave a micro-batch out, or keep those of a window that its data could not fill.
        whole = len(self._done) == self._done[0][1].count
        found: list[TermOutput] = []
        state = dict(self.state)
        values = [base, *(term.value for out, _ in self._done for term in out.all)]
        like = next((value for value in values if value is not None), None)
        for term in self.pipeline.all_terms:
            ran = [(out, batch) for out, batch in self._done if term.name in out.names]
            if ran:
                scope = (self._scopes or {}).get(term.name) or "mean"
                parts = _Parts.of(term, scope, ran, average)
                found.append(parts.summed(like))
                states = [(out.state[term.name], part) for out, part in parts.valued if term.name in out.state]
                if states and parts.everywhere:
                    state[term.name] = parts.averaged(states, average, whole=whole)
        own = None if base is None else TermOutput(BASE, base)
        if found and found[0].name == BASE:
            own = found.pop(0)
        self.state = state
        return dataclasses.replace(LossOutput.of(found, base=own), state=state)

    def announce(self, output: LossOutput) -> None:
        """Emit the events of the step that was finished last, as those of one call that returned this output.

        A step of one micro-batch on one rank, whose pipeline has the base loss, was one call and has emitted its own,
        unless norms were taken of it.
        """
        if not self._announced:
            seconds = time.perf_counter() - self._began
            Announcer(traced=False).whole(self.pipeline, self._step, output, seconds)

    def _whole(self, base: Any) -> LossOutput:
        """The output of a step of one micro-batch on one rank."""
        ((output, _),) = self._done
        # A term that did not run in this step keeps its state.
        self.state = {**self.state, **output.state}
        if base is None:
            return output
        return dataclasses.replace(output, total=output.total + base, base=TermOutput(BASE, base))


def _is_one(factor: Any) -> bool:
    """Whether a factor changes nothing; one that is an array is not looked at."""
    return type(factor) is float and factor == 1.0


def _resolved(term: Term, inputs: Mapping[str, Any]) -> Scope | None:
    """The scope of a term that reads these inputs: parameters are known by what they are, too."""
    scope = scope_of(term)
    if term.scope is None and term.inputs:
        parameters = [_reads_parameters(path, inputs) for path in term.inputs.values()]
        if all(parameters):
            return "step"
        if any(parameters) and scope == "sum":
            return None
    return "mean" if scope is None and term.name == BASE else scope


def _reads_parameters(path: str, inputs: Mapping[str, Any]) -> bool:
    root = path.partition(".")[0]
    if root == PARAMS:
        return True
    torch = sys.modules.get("torch")
    leaves = list(trees.arrays(inputs.get(path, inputs.get(root))))
    return torch is not None and bool(leaves) and all(isinstance(leaf, torch.nn.Parameter) for leaf in leaves)


def _check_known(pipeline: Pipeline, scopes: Mapping[str, Scope | None], batch: MicroBatch) -> None:
    for term in pipeline:
        if term.enabled and scopes[term.name] is None:
            parts = [f"{n} {what}" for n, what in ((batch.count, "micro-batches"), (batch.ranks, "ranks")) if n > 1]
            expected = f'"mean", "sum" or "step": the step has {" on ".join(parts)}, and neither the function nor its '
            raise OptionError(term.name, "scope", None, f"{expected}inputs say how values add up")


def _unscaled(output: LossOutput, pipeline: Pipeline, weights: Mapping[str, Any], step: Any) -> LossOutput:
    """The output with the weights that the user gave."""
    terms = {
        name: dataclasses.replace(term, weight=weight_of(pipeline[name], weights, step))
        for name, term in output.terms.items()
    }
    return dataclasses.replace(output, terms=terms)


def _detached(output: LossOutput) -> LossOutput:
    """The output without its graph, which would keep the activations of every micro-batch."""
    return dataclasses.replace(
        output,
        total=_without_graph(output.total),
        regularizer_total=_without_graph(output.regularizer_total),
        terms={name: _detached_term(term) for name, term in output.terms.items()},
        base=None if output.base is None else _detached_term(output.base),
    )


def _detached_term(term: TermOutput) -> TermOutput:
    return dataclasses.replace(term, value=_without_graph(term.value))


def _without_graph(value: Any) -> Any:
    ops = None if value is None else owner(value)
    return value if ops is None else ops.stop_gradient(value)


class _Parts(NamedTuple):
    """A term in the micro-batches of a step: in all in which it ran, and in those in which it was not skipped."""

    name: str
    scope: Scope
    ran: Sequence[tuple[LossOutput, MicroBatch]]
    valued: Sequence[tuple[LossOutput, MicroBatch]]
    anywhere: bool
    """Whether some rank has a value."""
    everywhere: bool
    """Whether each rank has one."""
    factor: Any
    """What a mean is multiplied by to be one over the parts that have a value."""

    @classmethod
    def of(
        cls,
        term: Term,
        scope: Scope,
        ran: Sequence[tuple[LossOutput, MicroBatch]],
        average: Callable[[Any], Any] | None,
    ) -> "_Parts":
        """Find out, together with the other ranks where there are some, in which parts the term has a value."""
        valued = [(out, part) for out, part in ran if out[term.name].value is not None]
        if term.on_error != "skip":
            return cls(term.name, scope, ran, valued, True, True, 1.0)

        def alike(number: Any) -> Any:
            return number if average is None else average(number)

        some, all_of_them = alike(float(bool(valued))), alike(float(len(valued) == len(ran)))
        factor: Any = 1.0
        if some > 0 and all_of_them < 1:
            kind = _kind(scope)
            whole = alike(sum(part.share(kind) * part.ranks for _, part in ran))
            there = alike(sum(_share(out[term.name], part, kind) for out, part in ran))
            factor = whole / (there + (there == 0))
        return cls(term.name, scope, ran, valued, some > 0, some >= 1, factor)

    def summed(self, like: Any) -> TermOutput:
        """The term over the step. `like` is a value of this library."""
        first = self.ran[0][0][self.name]
        if not self.anywhere:
            return first
        if not self.valued:
            # Other ranks have values, and all take part when they are averaged.
            ops = owner(like)
            zero = 0.0 if ops is None else ops.zero(like)
            return TermOutput(self.name, zero, first.weight)
        factor = 1.0 if self.scope == "sum" else self.factor
        parts = [(out[self.name], part) for out, part in self.valued]
        value = sum(term.value * (part.share(self.scope) * part.ranks * factor) for term, part in parts)
        terms = [term for term, _ in parts]
        durations = [term.duration for term in terms if term.duration is not None]
        duration = sum(durations) if durations else None
        return dataclasses.replace(terms[0], value=value, metrics=_mean_metrics(terms), duration=duration)

    def averaged(
        self, states: Sequence[tuple[Any, MicroBatch]], average: Callable[[Any], Any] | None, *, whole: bool
    ) -> Any:
        """The state of the term after the step; shares add up to 1, unless it has more or fewer micro-batches."""
        shares = [part.share(_kind(self.scope)) * part.ranks * self.factor for _, part in states]
        if not whole and self.scope != "step":
            total = sum(shares) if average is None else average(sum(shares))
            shares = [share / total for share in shares]
        return _mixed([state for state, _ in states], shares, average)


def _kind(scope: Scope) -> Scope:
    """How the state of a term is averaged."""
    return "step" if scope == "step" else "mean"


def _share(term: TermOutput, part: MicroBatch, kind: Scope) -> Any:
    return part.share(kind) * part.ranks * (0.0 if term.value is None else 1.0)


def _mean_metrics(terms: Sequence[TermOutput]) -> dict[str, Any]:
    """A term's own metrics, each over the micro-batches that have it."""
    found: dict[str, list[Any]] = {}
    for term in terms:
        for name, metric in term.metrics.items():
            found.setdefault(name, []).append(metric)
    return {name: sum(metrics) / len(metrics) for name, metrics in found.items()}


def _mixed(states: Sequence[Any], shares: Sequence[Any], average: Callable[[Any], Any] | None) -> Any:
    last = states[-1]
    if is_mapping(last):
        return {key: _mixed([state[key] for state in states], shares, average) for key in last}
    if is_row(last):
        mixed = [_mixed(list(column), shares, average) for column in zip(*states, strict=True)]
        return mixed if isinstance(last, list) else tuple(mixed)
    ops = owner(last)
    if not isinstance(last, float) and (ops is None or not ops.differentiable(last, requested=True)):
        return last
    alone = len(states) == 1 and _is_one(shares[0])
    mixed = last if alone else sum(state * share for state, share in zip(states, shares, strict=True))
    return mixed if average is None else average(mixed)
