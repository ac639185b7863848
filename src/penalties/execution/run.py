"""One run of a pipeline by an executor: starting terms, waiting for them, and what happens where one fails."""

import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..backends import owner
from ..errors import BackendError, InputError, NonFiniteError, TermError
from ..pipeline.awaitables import is_awaitable, waiting
from ..pipeline.call import Call, Job, failed_row
from ..pipeline.evaluate import compute, differentiate
from ..pipeline.inputs import arrays_in, lookup, reads
from ..pipeline.kinds import compiling
from ..pipeline.pipeline import is_due
from ..pipeline.reading import NOTHING, Row, as_numbers
from ..pipeline.term import Term, Weight
from .ambient import Modes
from .awaiting import close_here, wait_here
from .delivery import delivered, wanted
from .task import Running, Task, pool_of

if TYPE_CHECKING:
    from .executor import Executor

__all__ = ["Run"]

_Failure = TermError | NonFiniteError


class Run:
    """One run. Called by the pipeline with what is to be evaluated."""

    def __init__(self, executor: "Executor") -> None:
        """Nothing started yet."""
        self.executor: Executor = executor
        self.sequential: bool = executor.sequential
        self.running: dict[str, Running] = {}
        self.early: dict[str, _Early] = {}
        self.cancelled: bool = False
        self._modes: Any = None

    def start_early(
        self,
        terms: Sequence[Term],
        inputs: Mapping[str, Any],
        step: int | None,
        state: Mapping[str, Any] | None,
        asked: Sequence[str],
    ) -> None:
        """Start the terms whose inputs are all there; the others' are still to come. Those that run here come last."""
        if self.sequential:
            return
        here: list[tuple[Term, Any]] = []
        there = {name: value for name, value in inputs.items() if not is_awaitable(value)}
        late = [name for name in inputs if name not in there]
        for term in terms:
            if not term.enabled or any(_root(name, inputs) in late for name in term.inputs.values()):
                continue
            if term.every > 1 and not is_due(term, step):
                continue
            read = _read(term, there, step)
            if _here(term):
                here.append((term, None if state is None else state.get(term.name)))
                continue
            wrt = wanted(term, read, None)
            if term.differentiable:
                wrt += tuple(n for n in read if n not in wrt and any(reads(n, name) for name in asked))
            before = None if state is None else state.get(term.name)
            self.running[term.name] = self._start(term, read, wrt, step, before)
        for term, before in here:
            names = term.inputs.values()
            if not any(_asked(name, asked) or _trained(lookup(term.name, there, name)) for name in names):
                self.early[term.name] = _Early.of(term, there, step, before)

    def __call__(
        self, call: Call, jobs: Sequence[Job], inputs: Mapping[str, Any]
    ) -> tuple[list[tuple[Row, Any]], _Failure | None]:
        """Every term's row and new state, in order, and the failure to raise once the output is made."""
        if compiling():
            raise BackendError("Executor.run: called inside torch.compile; call it outside")
        if self.cancelled:
            raise TermError(jobs[0][0].name if jobs else "", "was cancelled")
        special = call.heard or call.quiet or self.sequential or call.gradients or self.early
        if not special and all(job[0].usual for job in jobs):
            return self._usual(call, jobs, inputs)
        away: dict[int, dict[str, Any]] = {}
        if not self.sequential:
            away = {place: _read(term, inputs, call.step) for place, (term, _, _) in enumerate(jobs) if not _here(term)}
        found: list[_Found] = [_Found(term, weight) for term, weight, _ in jobs]
        targets = None if call.gradients is None else call.gradients.targets
        for place, read in away.items():
            term, weight, before = jobs[place]
            found[place].began = call.term_began(term, weight)
            if term.name in self.running:
                continue
            try:
                self.running[term.name] = self._start(term, read, wanted(term, read, targets), call.step, before)
            except TermError as error:
                found[place].error = error
        if self.sequential:
            with waiting(wait_here):
                self._evaluate_here(call, jobs, inputs, away, found)
            close_here()
        elif len(away) < len(jobs):
            self._evaluate_here(call, jobs, inputs, away, found)
        for place, read in away.items():
            self._collect(found[place], read, targets)
        self._check_finite(found)
        # In this order: a row that failed forgets its new state.
        return [(one.finished(call), one.new) for one in found], self._failure(call, found)

    def _usual(
        self, call: Call, jobs: Sequence[Job], inputs: Mapping[str, Any]
    ) -> tuple[list[tuple[Row, Any]], _Failure | None]:
        """The same where all terms run here and nobody listens: a record of each would double what it costs."""
        results: list[tuple[Row, Any]] = []
        errors: dict[int, _Failure] = {}
        limit, step, clock = self.executor.timeout, call.step, time.perf_counter
        for place, (term, weight, before) in enumerate(jobs):
            start = clock()
            try:
                value, _, metrics, new = compute(term, inputs, step, before)
            except TermError as error:
                errors[place] = error
                value, metrics, new = None, NOTHING, None
            duration = clock() - start
            if duration > limit or term.timeout is not None:
                self._report_overrun(term, duration, frames=7)
            results.append(((term.name, value, weight, None, None, NOTHING, metrics, duration, None), new))
        values = [row[1] for row, _ in results]
        if not errors and all(map(math.isfinite, as_numbers(values))):
            return results, None
        found = [_Found(term, weight) for term, weight, _ in jobs]
        for place, one in enumerate(found):
            (one.row, one.new), one.error = results[place], errors.get(place)
        self._check_finite(found)
        return [(one.finished(call), one.new) for one in found], self._failure(call, found)

    def cancel(self) -> None:
        """Stop whatever still runs, and start nothing more."""
        self.cancelled = True
        for running in list(self.running.values()):
            running.cancel()

    def _start(
        self, term: Term, read: Mapping[str, Any], wrt: tuple[str, ...], step: int | None, before: Any
    ) -> Running:
        if self.cancelled:
            raise TermError(term.name, "was cancelled")
        if self._modes is None and pool_of(term) in ("thread", "async"):
            self._modes = Modes()
        timeout = self.executor.timeout if term.timeout is None else term.timeout
        inputs = {name: _concrete(term.name, value) for name, value in read.items()}
        return self.executor.pool(term).start(Task(term, inputs, wrt, step, before, timeout, self._modes))

    def _evaluate_here(
        self,
        call: Call,
        jobs: Sequence[Job],
        inputs: Mapping[str, Any],
        away: Mapping[int, Any],
        found: Sequence["_Found"],
    ) -> None:
        for place, (term, weight, before) in enumerate(jobs):
            if place in away:
                continue
            if self.cancelled:
                raise TermError(term.name, "was cancelled")
            one = found[place]
            early = self.early.get(term.name)
            if early is not None and (call.gradients is None or not early.has_graph):
                one.began = call.term_began(term, weight)
                one.value, one.metrics, one.new, one.duration, one.error = early[:5]
                if call.gradients is not None:
                    one.grad_error = f"it does not read {', '.join(dict.fromkeys(call.gradients.targets.names))}"
                self._report_overrun(term, one.duration)
                continue
            try:
                if call.gradients is not None and term.on_error == "skip":
                    # Its gradient is added when its value is known to be finite, and the term is not left out.
                    one.began = call.term_began(term, weight)
                    start = time.perf_counter()
                    result, one.leaves, one.grad_error = differentiate(
                        term, inputs, call.gradients.targets, step=call.step, state=before
                    )
                    one.value, _, one.metrics, one.new = result
                    one.duration = time.perf_counter() - start
                else:
                    one.row, one.new = call.evaluate(term, weight, inputs, before, True)
            except TermError as error:
                one.error = error
            else:
                self._report_overrun(term, one.duration if one.row is None else one.row[7])

    def _report_overrun(self, term: Term, duration: float | None, frames: int = 8) -> None:
        limit = self.executor.timeout if term.timeout is None else term.timeout
        if duration is not None and duration > limit:
            warnings.warn(
                f"{term.name}: took {duration:.3g} s, more than its timeout of {limit:g} s; a term that runs inline "
                'cannot be stopped: runs="process" can',
                RuntimeWarning,
                stacklevel=frames,  # the call of `run`
            )

    def _collect(self, one: "_Found", read: Mapping[str, Any], targets: Any) -> None:
        if one.error is not None:
            return
        try:
            evaluation = self.running[one.term.name].result()
            one.value, one.leaves, one.grad_error = delivered(one.term, read, evaluation, targets)
            one.metrics, one.new, one.duration = evaluation.metrics, evaluation.state, evaluation.duration
        except TermError as error:
            one.error = error

    def _check_finite(self, found: Sequence["_Found"]) -> None:
        """Set an error where a value is NaN or infinite: of all terms, in one transfer."""
        there = [one for one in found if one.error is None and one.given is not None]
        for one, number in zip(there, as_numbers([_plain(one.given) for one in there]), strict=True):
            if not math.isfinite(number):
                kind = "nan" if math.isnan(number) else "inf"
                one.error = NonFiniteError(kind, f"{one.term.name}: the value is {number:g}")
                one.error.term = one.term.name

    def _failure(self, call: Call, found: Sequence["_Found"]) -> _Failure | None:
        failed = [one for one in found if one.error is not None and one.term.on_error == "raise"]
        if not failed:
            return None
        first, error = failed[0], failed[0].error
        assert error is not None, "it failed"
        for other in failed[1:]:
            error.add_note(f"failed too: {other.error}")
        if any(one.row is not None for one in failed):
            # The gradient of one that turned out not to be finite is in the sum.
            call.gradients = None
        call.running = first.term
        return error


class _Early(NamedTuple):
    """A term that was evaluated here while inputs of others were still to come."""

    value: Any
    metrics: Mapping[str, Any]
    new: Any
    duration: float
    error: TermError | None
    has_graph: bool
    """Whether a parameter that the function holds is behind its value: with gradients it is evaluated as ever."""

    @classmethod
    def of(cls, term: Term, inputs: Mapping[str, Any], step: int | None, before: Any) -> "_Early":
        start = time.perf_counter()
        try:
            value, _, metrics, new = compute(term, inputs, step, before)
        except TermError as error:
            return cls(None, NOTHING, None, time.perf_counter() - start, error, False)
        return cls(value, metrics, new, time.perf_counter() - start, None, getattr(value, "requires_grad", False))


class _Found:
    """What came of one term."""

    __slots__ = (
        "began",
        "duration",
        "error",
        "grad_error",
        "leaves",
        "metrics",
        "new",
        "row",
        "term",
        "value",
        "weight",
    )

    def __init__(self, term: Term, weight: Weight) -> None:
        self.term = term
        self.weight = weight
        self.row: Row | None = None
        """Its row, where it is complete as it is."""
        self.value: Any = None
        self.leaves: list[Any] | None = None
        self.grad_error: str | None = None
        self.metrics: Mapping[str, Any] = {}
        self.new: Any = None
        self.duration: float | None = None
        self.error: _Failure | None = None
        self.began: Any = None

    @property
    def given(self) -> Any:
        """Its value, or None."""
        return self.value if self.row is None else self.row[1]

    def finished(self, call: Call) -> Row:
        """The row, with the gradient added to the others'."""
        if self.error is not None:
            self.new = None
            row = failed_row(self.term, self.weight, self.error)
        elif self.row is not None:
            return self.row
        else:
            grad_norm, grad_norms = call.taken(self.term, self.weight, self.value, self.leaves)
            row = (
                self.term.name,
                self.value,
                self.weight,
                grad_norm,
                self.grad_error,
                grad_norms,
                self.metrics,
                self.duration,
                None,
            )
        if self.began is not None:
            call.term_ended(self.began, row)
        return row


def _read(term: Term, inputs: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    """What the term reads; an input that is missing is an error before anything starts."""
    if step is None and term.needs_step:
        raise InputError(f"{term.name}: asks for the step; pass step= to the call")
    return {name: lookup(term.name, inputs, name) for name in term.inputs.values()}


def _asked(name: str, asked: Sequence[str]) -> bool:
    return any(reads(name, one) or reads(one, name) for one in asked)


def _trained(nest: Any) -> bool:
    """Whether a gradient may be wanted at an input: it requires one, or JAX follows it."""
    return any(ops.differentiable(array, asked=False) for ops, array in arrays_in(nest))


def _here(term: Term) -> bool:
    return term.runs == "inline" and not term.asynchronous


def _root(name: str, inputs: Mapping[str, Any]) -> str:
    """The input that a path leads into."""
    while name not in inputs and "." in name:
        name = name.rpartition(".")[0]
    return name


def _concrete(term: str, value: Any) -> Any:
    """The input without JAX's tracing of it; inside jit and vmap there are no numbers to send."""
    if any(ops.LIBRARY == "PyTorch" and ops.tracing(array) for ops, array in arrays_in(value)):
        raise BackendError(f"{term}: Executor.run was called inside a transform of torch.func; call it outside")
    jax = sys.modules.get("jax")
    if jax is None or not any(ops.LIBRARY == "JAX" and ops.tracing(array) for ops, array in arrays_in(value)):
        return value
    plain = jax.tree_util.tree_map(_plain, value)
    if any(ops.tracing(array) for ops, array in arrays_in(plain)):
        raise BackendError(
            f"{term}: Executor.run was called inside jax.jit or jax.vmap; call it outside (jax.grad may be)"
        )
    return plain


def _plain(value: Any) -> Any:
    """A value without what differentiates it."""
    ops = owner(value)
    return ops.stop_gradient(value) if ops is not None and ops.LIBRARY == "JAX" else value
