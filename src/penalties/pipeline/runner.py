"""What evaluates the groups of a call: the protocol of runners, and the inline one."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .. import trees
from ..backends import Backend, owner
from ..errors import NonFiniteError, TermError
from .announcing import Announcer
from .combine import Combination
from .evaluate import evaluate
from .evaluation import Evaluation
from .inputs import INPUT, CallInputs
from .plan import Group, Job, Plan
from .targets import Targets
from .wrappers.wrapper import Wrapper

__all__ = ["CallContext", "Runner", "evaluate_group", "failed", "run_inline"]


class CallContext(NamedTuple):
    """What the terms of a call share."""

    inputs: CallInputs
    targets: Targets | None
    step: Any
    announcer: Announcer
    accumulate: bool = False
    """Whether a kernel adds the gradient to the leaves' `.grad`."""


class Runner(Protocol):
    """Evaluates every group of a plan and hands the evaluations over, term by term, in order."""

    def __call__(
        self, plan: Plan, context: CallContext, combination: Combination, /
    ) -> tuple[dict[str, Any], TermError | NonFiniteError | None]:
        """New state by term, and the failure to raise once the output of the other terms is there."""
        ...


def run_inline(plan: Plan, context: CallContext, combination: Combination) -> tuple[dict[str, Any], None]:
    """Evaluate every group here, one after another; the first failure of a term that is not to be skipped is raised."""
    for group in plan:
        for job in group.jobs:
            if job.term.runs != "inline" or job.term.asynchronous:
                context.announcer.running = job.term.name
                raise TermError(job.term.name, _elsewhere(job))
    states: dict[str, Any] = {}
    for group in plan:
        for job, evaluation in zip(group.jobs, evaluate_group(group, context, combination), strict=True):
            combination.take(job, evaluation)
            if evaluation.state is not None:
                states[job.term.name] = evaluation.state
    return states, None


def evaluate_group(
    group: Group,
    context: CallContext,
    combination: Combination,
    check: Callable[[Job, Evaluation], Evaluation] | None = None,
) -> Sequence[Evaluation]:
    """The evaluations of a group, checked and announced; a term that fails and may be skipped has its error there."""
    announcer = context.announcer
    started = [announcer.start_term(job) for job in group.jobs] if announcer.heard else [None]
    coefficients = [job.weight for job in group.jobs]
    inputs = context.inputs
    if group.jobs[0].due is not True and context.targets is None:
        inputs = _inputs_where_due(group.jobs[0], inputs)
    try:
        evaluations, combined = evaluate(
            group,
            inputs,
            context.targets,
            step=context.step,
            coefficients=coefficients,
            accumulate=context.accumulate,
        )
    except BaseException as error:
        announcer.fail_term(started[0], error)
        if not isinstance(error, TermError) or group.jobs[0].term.on_error == "raise":
            raise
        return [failed(group.jobs[0], error)]
    if combined is not None:
        combination.take_combined(combined, group.jobs)
    if group.jobs[0].due is not True:
        evaluations = [_where_due(group.jobs[0], evaluations[0])]
    if check is not None:
        evaluations = [check(job, evaluation) for job, evaluation in zip(group.jobs, evaluations, strict=True)]
    if announcer.heard:
        for begun, evaluation in zip(started, evaluations, strict=True):
            announcer.stop_term(begun, evaluation)
    return evaluations


def failed(job: Job, error: BaseException) -> Evaluation:
    """The evaluation of a term that failed."""
    if job.term.on_error == "skip":
        # Without the frames, which would keep the inputs alive as long as the output; one that is raised shows them.
        chain: list[BaseException | None] = [error]
        seen: set[int] = set()
        while chain:
            one = chain.pop()
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                # By the parent of all: a class may forbid what is read and set here.
                BaseException.__setattr__(one, "__traceback__", None)
                chain += [BaseException.__getattribute__(one, link) for link in ("__cause__", "__context__")]
    return Evaluation(None, error=error)


def _elsewhere(job: Job) -> str:
    where = "is asynchronous" if job.term.asynchronous else f'runs="{job.term.runs}"'
    return f"{where}, and a pipeline runs its terms inline; use an Executor: executor.run(pipeline, inputs)"


def _inputs_where_due(job: Job, inputs: CallInputs) -> CallInputs:
    """The inputs of a term at a traced step: where it is not due no gradient reaches them, not even one that is NaN."""
    ops = owner(job.due)
    assert ops is not None, "a plain step was decided before"

    def gated(array: Any) -> Any:
        if owner(array) is not ops or not ops.differentiable(array, requested=True):
            return array
        return ops.where(job.due, array, ops.stop_gradient(array))

    # Under the names that the term reads: what it reads may be inside an object, which is not a nest.
    names = [INPUT] if inputs.alone else job.term.inputs.values()
    return inputs.replaced({name: trees.map_arrays(gated, inputs.find(job.term.name, name)) for name in names})


def _where_due(job: Job, evaluation: Evaluation) -> Evaluation:
    """The evaluation as it counts at a traced step: where the term is not due, nothing of it is left."""
    ops = owner(job.due)
    assert ops is not None, "a plain step was decided before"

    def masked(array: Any) -> Any:
        return ops.where(job.due, array, 0.0)

    # A running mean that has not started is NaN, and starts at the next value.
    before = math.nan if job.state is None and isinstance(job.term.fn, Wrapper) else job.state
    state = evaluation.state
    return Evaluation(
        masked(evaluation.value),
        trees.map_arrays(masked, evaluation.gradient),
        evaluation.metrics,
        state if state is None or before is None else _chosen(ops, job.due, state, before),
        evaluation.duration,
        evaluation.grad_error,
        None if evaluation.grad_norm is None else masked(evaluation.grad_norm),
        trees.map_arrays(masked, evaluation.grad_norms),
    )


def _chosen(ops: Backend, due: Any, new: Any, before: Any) -> Any:
    """The new state where due, array by array; if `before` is a number, it stands for every array."""
    olds = [before] * len(list(trees.arrays(new))) if isinstance(before, float) else trees.pair(new, before)
    old = iter(olds)
    return trees.map_arrays(lambda array: ops.where(due, array, next(old)), new)
