"""One run of a pipeline by an executor: the runner that starts each term where it runs, and waits for it."""

import contextlib
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import trees
from ..backends import owner
from ..errors import BackendError, NonFiniteError, TermError, said
from ..pipeline.announcing import Started
from ..pipeline.awaitables import is_awaitable, waiting
from ..pipeline.call import is_due
from ..pipeline.combine import Combination
from ..pipeline.evaluate import evaluate
from ..pipeline.evaluation import Evaluation
from ..pipeline.inputs import CallInputs, reads
from ..pipeline.kinds import compiling
from ..pipeline.output.reading import as_numbers
from ..pipeline.plan import Group, Job, Plan
from ..pipeline.runner import CallContext, evaluate_group, failed
from ..pipeline.targets import Gradients, requires_gradient
from ..pipeline.term import Term, check_step
from .ambient import Modes
from .awaiting import close_here, wait_here
from .delivery import delivered, wanted
from .task import Running, Task, pool_of

if TYPE_CHECKING:
    from .executor import Executor

__all__ = ["Run"]

_Failure = TermError | NonFiniteError


class Run:
    """The runner of one `Executor.run`: inline terms are evaluated here while the others run elsewhere."""

    def __init__(self, executor: "Executor") -> None:
        """Nothing has started yet."""
        self.executor: Executor = executor
        self.running: dict[str, Running] = {}
        self.early: dict[str, Evaluation] = {}
        """Inline terms that were evaluated while inputs of other terms were still to come."""
        self.cancelled: bool = False
        self._modes: Modes | None = None

    def start_early(
        self,
        terms: Sequence[Term],
        inputs: Mapping[str, Any],
        step: int | None,
        state: Mapping[str, Any],
        gradients: Gradients | None,
    ) -> None:
        """Start the terms whose inputs are all there while others are still to come; inline terms come last."""
        if self.executor.sequential:
            return
        there = {name: value for name, value in inputs.items() if not is_awaitable(value)}
        wrt = () if gradients is None else gradients.wrt or ()
        here: list[Term] = []
        for term in terms:
            late = any(_root(name, inputs) not in there for name in term.inputs.values())
            if late or not term.enabled or not is_due(term, step):
                continue
            if not self._is_elsewhere(term):
                here.append(term)
                continue
            read = _read(term, CallInputs.of(there), step)
            at = wanted(term, read, None)
            if term.differentiable and gradients is not None:
                at += tuple(
                    n
                    for n, value in read.items()
                    if n not in at and (_requested(n, wrt) if gradients.wrt else requires_gradient(value))
                )
            # What cannot start now is tried again with the others, where failing is up to its `on_error`.
            with contextlib.suppress(TermError):
                self.running[term.name] = self._start(term, read, at, step, state.get(term.name))
        for term in here:
            read = _read(term, CallInputs.of(there), step)
            if not any(_requested(name, wrt) or requires_gradient(given) for name, given in read.items()):
                self.early[term.name] = _evaluated_early(term, there, step, state.get(term.name))

    def __call__(
        self, plan: Plan, context: CallContext, combination: Combination, /
    ) -> tuple[dict[str, Any], _Failure | None]:
        """Evaluate every group; see `Runner`."""
        if compiling():
            raise BackendError("Executor.run: called inside torch.compile; call it outside")
        self._check_cancelled(plan)
        elsewhere = [group.jobs[0] for group in plan if self._is_elsewhere(group.jobs[0].term)]
        # An input that is missing is an error before anything starts.
        given = {job.index: _read(job.term, context.inputs, context.step) for job in elsewhere}
        started: dict[int, Started | None] = {}
        outcomes: dict[int, Evaluation] = {}
        for job in elsewhere:
            started[job.index] = context.announcer.start_term(job)
            if job.term.name not in self.running:
                at = wanted(job.term, given[job.index], context.targets)
                try:
                    self.running[job.term.name] = self._start(job.term, given[job.index], at, context.step, job.state)
                except TermError as error:
                    outcomes[job.index] = failed(job, error)
        taken: list[tuple[Job, Evaluation]] = []

        def take(group: Group, evaluations: Sequence[Evaluation]) -> None:
            for job, evaluation in zip(group.jobs, evaluations, strict=True):
                combination.take(job, evaluation)
                evaluation.gradient = None
                taken.append((job, evaluation))

        # In the order of the terms, whatever finishes first. Inline terms are evaluated while the others run; those
        # before the first of the others are handed over at once, so that their gradients are not all held.
        held: dict[int, Sequence[Evaluation]] = {}
        with waiting(wait_here) if self.executor.sequential else contextlib.nullcontext():
            for group in plan:
                index = group.jobs[0].index
                if index in given:
                    continue
                evaluations = self._evaluate_here(group, context, combination)
                if any(job.index < index for job in elsewhere):
                    held[index] = evaluations
                else:
                    take(group, evaluations)
        if self.executor.sequential:
            close_here()
        for group in plan:
            index = group.jobs[0].index
            if index in held:
                take(group, held.pop(index))
            elif index in given:
                outcome = outcomes.get(index) or self._collected(group.jobs[0], given[index], context)
                take(group, [outcome])
        failure = _first_failure(taken, combination, context)
        for job, evaluation in taken:
            if job.index in started:
                context.announcer.stop_term(started[job.index], evaluation)
        if failure is not None:
            context.announcer.running = failure.term
        states = {job.term.name: one.state for job, one in taken if one.error is None and one.state is not None}
        return states, failure

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of an executor like this one, for a recording."""
        one = self.executor
        return {"max_workers": one.max_workers, "timeout": one.timeout, "sequential": one.sequential}

    def cancel(self) -> None:
        """Stop whatever still runs, and start nothing more."""
        self.cancelled = True
        for running in list(self.running.values()):
            running.cancel()

    def _is_elsewhere(self, term: Term) -> bool:
        return not self.executor.sequential and (term.runs != "inline" or term.asynchronous)

    def _check_cancelled(self, plan: Plan) -> None:
        if self.cancelled:
            raise TermError(plan.groups[0].jobs[0].term.name if len(plan) else "", "was cancelled")

    def _start(
        self, term: Term, read: Mapping[str, Any], wrt: tuple[str, ...], step: int | None, state: Any
    ) -> Running:
        if self.cancelled:
            raise TermError(term.name, "was cancelled")
        if self._modes is None and pool_of(term) in ("thread", "async"):
            self._modes = Modes()
        timeout = self.executor.timeout if term.timeout is None else term.timeout
        inputs = {name: _concrete(term.name, value) for name, value in read.items()}
        try:
            return self.executor.pool(term).start(Task(term, inputs, wrt, step, state, timeout, self._modes))
        except (OSError, MemoryError) as error:
            raise TermError(term.name, f"could not be started: {said(error)}") from error

    def _evaluate_here(self, group: Group, context: CallContext, combination: Combination) -> Sequence[Evaluation]:
        self._check_cancelled(Plan((group,)))
        first = group.jobs[0]
        early = self.early.get(first.term.name)
        if early is not None:
            started = context.announcer.start_term(first)
            if context.targets is not None:
                early.grad_error = context.targets.unread
            early = _finite_or_failed(first, early)
            context.announcer.stop_term(started, early)
            evaluations: Sequence[Evaluation] = [early]
        else:
            try:
                evaluations = evaluate_group(group, context, combination, _finite_or_failed)
            except TermError as error:
                return [failed(job, error) for job in group.jobs]
        for job, evaluation in zip(group.jobs, evaluations, strict=True):
            limit = self.executor.timeout if job.term.timeout is None else job.term.timeout
            if evaluation.duration is not None and evaluation.duration > limit:
                warnings.warn(
                    f"{job.term.name}: took {evaluation.duration:.3g} s, more than its timeout of {limit:g} s; a term "
                    'that runs inline cannot be stopped: runs="process" can',
                    RuntimeWarning,
                    stacklevel=6,  # the call of `run`
                )
        return evaluations

    def _collected(self, job: Job, read: Mapping[str, Any], context: CallContext) -> Evaluation:
        try:
            found = self.running[job.term.name].result()
            return _finite_or_failed(job, delivered(job.term, read, found, context.targets))
        except TermError as error:
            return failed(job, error)


def _evaluated_early(term: Term, inputs: Mapping[str, Any], step: int | None, state: Any) -> Evaluation:
    group = Group.of(term, state)
    try:
        return evaluate(group, CallInputs.of(inputs), None, step=step).evaluations[0]
    except TermError as error:
        return failed(group.jobs[0], error)


def _finite_or_failed(job: Job, evaluation: Evaluation) -> Evaluation:
    """The evaluation, or for a term that may be skipped its failure: what is not finite must not reach the sum."""
    if evaluation.error is not None or job.term.on_error == "raise":
        return evaluation
    (number,) = as_numbers([_plain(evaluation.value)])
    return evaluation if math.isfinite(number) else failed(job, _not_finite(job, number))


def _first_failure(
    taken: Sequence[tuple[Job, Evaluation]], combination: Combination, context: CallContext
) -> _Failure | None:
    """The first term, in order, that failed or is not finite; all values are read in one transfer."""
    there = [(job, one) for job, one in taken if one.error is None and job.term.on_error == "raise"]
    for (job, one), number in zip(there, as_numbers([_plain(one.value) for _, one in there]), strict=True):
        if not math.isfinite(number):
            one.error = _not_finite(job, number)
            combination.fail(job, one.error)
    errors = [
        one.error
        for job, one in sorted(taken, key=lambda pair: pair[0].index)
        if job.term.on_error == "raise" and isinstance(one.error, TermError | NonFiniteError)
    ]
    for other in errors[1:]:
        errors[0].add_note(f"failed too: {other}")
    return errors[0] if errors else None


def _not_finite(job: Job, number: float) -> NonFiniteError:
    return NonFiniteError.of(number, f"the value is {number:g}", job.term.name)


def _read(term: Term, inputs: CallInputs, step: int | None) -> dict[str, Any]:
    """What the term reads, under its own names."""
    check_step(term, step)
    return {name: inputs.find(term.name, name) for name in term.inputs.values()}


def _requested(name: str, wrt: Sequence[str]) -> bool:
    return any(reads(name, one) or reads(one, name) for one in wrt)


def _root(name: str, inputs: Mapping[str, Any]) -> str:
    """The input that a path leads into."""
    while name not in inputs and "." in name:
        name = name.rpartition(".")[0]
    return name


def _concrete(term: str, value: Any) -> Any:
    """The input without JAX's tracing of it; inside jit and vmap there are no numbers to send."""
    libraries = {ops.LIBRARY for array in trees.arrays(value) if (ops := owner(array)) and ops.tracing(array)}
    if "PyTorch" in libraries:
        raise BackendError(f"{term}: Executor.run was called inside a transform of torch.func; call it outside")
    if "JAX" not in libraries:
        return value
    plain = sys.modules["jax"].tree_util.tree_map(_plain, value)
    if any((ops := owner(array)) and ops.tracing(array) for array in trees.arrays(plain)):
        raise BackendError(
            f"{term}: Executor.run was called inside jax.jit or jax.vmap; call it outside (jax.grad may be)"
        )
    return plain


def _plain(value: Any) -> Any:
    """A value without what differentiates it."""
    ops = owner(value)
    return ops.stop_gradient(value) if ops is not None and ops.LIBRARY == "JAX" else value
