"""One call of a pipeline, wherever its terms are evaluated: plan, run, combine."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from ..backends import owner
from ..errors import CheckError, GradientError, InputError, OptionError
from ..functional.options import is_whole
from ..telemetry import events
from . import checks
from .accumulating import check_leaves, prepare
from .announcing import Announcer, note
from .combine import Combination
from .groups.fused import FusedElements
from .inputs import INPUT, CallInputs, check_spelling, check_unmapped, prepared
from .kinds import compiling
from .output import LossOutput
from .plan import Job, Plan, plan_of
from .recordings import Call, keep, keep_skipped
from .runner import CallContext, Runner
from .targets import Gradients, Targets
from .term import CALL_ARGUMENTS, Term, Weight, check_step
from .weigh import check_weights, weight_of

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = ["check_wrt", "inputs_of", "is_due", "plan_call", "run_call"]

_VALUES: Final = Gradients(None)
"""What a call without gradients takes."""


def run_call(
    pipeline: "Pipeline",
    inputs: CallInputs,
    runner: Runner,
    *,
    weights: Mapping[str, Weight] | None = None,
    step: Any = None,
    state: Mapping[str, Any] | None = None,
    gradients: Gradients | None = None,
) -> LossOutput:
    """The one way from inputs to an output: plan → runner → evaluations → combine."""
    step = _checked_step(step)
    if state is not None and not isinstance(cast("object", state), Mapping):
        raise OptionError("pipeline", "state", state, "None, or the state of an output, as out.state")
    announcer = Announcer(traced=inputs.traced or _makes_tracers(inputs))
    announcer.start(pipeline, step, gradients=gradients is not None)
    try:
        jobs = _jobs(pipeline, inputs, check_weights(pipeline.names, weights), step, state or {})
        record = None
        if not inputs.transformed:
            record = checks.Record.of(pipeline, jobs, inputs, state, call=announcer.call, step=step)
        elif inputs.ops is not None and inputs.ops.LIBRARY == "JAX" and events.handlers:
            note(pipeline, step)
        if record is not None and checks.is_on() and (findings := checks.findings(record, inputs)):
            raise CheckError(findings)
        targets = _targets(jobs, inputs, gradients)
        plan = pipeline.plans.of(jobs, inputs, targets, hold=gradients is not None and gradients.hold)
        combination = Combination(jobs, inputs, targets, gradients or _VALUES)
        context = CallContext(inputs, targets, step, announcer, _adds_in_place(plan, targets, gradients))
        states, failure = runner(plan, context, combination)
        output = combination.output(
            # A term that rests, or is skipped, keeps its state.
            state={**_known(pipeline, state), **states} if state else states,
            has_base=len(jobs) > 0 and jobs[0].term is pipeline.base,
            record=record,
        )
        if failure is not None:
            failure.output = output
            raise failure
    except BaseException as error:
        announcer.fail(error)
        keep(error, Call(pipeline, inputs, runner, weights, step, state, gradients))
        raise
    if not inputs.transformed:
        keep_skipped(output, Call(pipeline, inputs, runner, weights, step, state, gradients))
    announcer.stop(output)
    return output


def plan_call(pipeline: "Pipeline", inputs: CallInputs, step: Any, gradients: Gradients) -> Plan:
    """The plan of such a call."""
    jobs = _jobs(pipeline, inputs, {}, _checked_step(step), {})
    try:
        targets = _targets(jobs, inputs, gradients)
    except GradientError:
        if gradients.wrt is not None:
            raise
        # No input requires a gradient, and none was named: the plan is that of a plain call.
        targets = None
    return plan_of(jobs, inputs, targets, hold=gradients.hold)


def inputs_of(pipeline: "Pipeline", positional: tuple[Any, ...], named: dict[str, Any]) -> CallInputs:
    """The inputs of a call: one by position, which every term reads, or any number by name."""
    for name in named:
        if name in CALL_ARGUMENTS:
            raise InputError(f'"{name}" cannot name an input, and this call does not take it as an argument')
        if name not in pipeline.reads and not compiling():
            check_spelling(name, named[name])
    if not positional:
        if not pipeline.unmapped.isdisjoint(named):
            check_unmapped(pipeline.all_terms, named)
        return CallInputs.of(prepared(named))
    if named or len(positional) > 1:
        count = f"{len(positional)} positional and {len(named)} named"
        raise InputError(f"a call takes one positional input, or named inputs; given: {count}")
    for term in pipeline.all_terms:
        if term.enabled and len(term.inputs) != 1:
            names = ", ".join(term.inputs.values()) or "no input"
            raise InputError(f"{term.name}: reads {names}; pass inputs by name, not by position")
    return CallInputs.of(prepared(dict.fromkeys((INPUT,), *positional)), alone=True)


def check_wrt(function: str, wrt: str | Sequence[str] | None) -> Sequence[str] | None:
    """What gradients are taken with respect to, as names; None is whatever requires one."""
    names = (wrt,) if isinstance(wrt, str) else wrt
    if owner(wrt) is not None:
        raise OptionError(function, "wrt", "an array", "the name of an input, or names")
    if names is not None and (not names or not all(isinstance(cast("object", name), str) for name in names)):
        raise OptionError(function, "wrt", wrt, "a name or names of inputs, or None")
    return names


def is_due(term: Term, step: Any) -> Any:
    """Whether the term runs at this step; where the step is traced, an array that says so."""
    if term.every == 1:
        return True
    if step is None:
        raise InputError(f"{term.name}: runs every {term.every} steps; pass step= to the call")
    due: Any = step % term.every == 0
    if owner(due) is None:
        # By a branch: inside torch.compile a step is a symbol, and bool() of it would be one too.
        return True if due else False  # noqa: SIM210
    return due


def _jobs(
    pipeline: "Pipeline", inputs: CallInputs, overrides: Mapping[str, Weight], step: Any, state: Mapping[str, Any]
) -> list[Job]:
    """The terms that are due, in order, the base loss first."""
    jobs: list[Job] = []
    for term in pipeline.all_terms:
        if not term.enabled or (due := is_due(term, step)) is False:
            continue
        check_step(term, step)
        weight = weight_of(term, overrides, step)
        jobs.append(Job(len(jobs), term, weight, state.get(term.name), due))
    return jobs


def _known(pipeline: "Pipeline", state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of terms that the pipeline has."""
    names = {term.name for term in pipeline.all_terms}
    return {name: part for name, part in state.items() if name in names}


def _targets(jobs: Sequence[Job], inputs: CallInputs, gradients: Gradients | None) -> Targets | None:
    if gradients is None:
        return None
    requested = gradients.wrt is not None
    names = gradients.wrt or [name for job in jobs for name in job.term.inputs.values()]
    if inputs.alone and not requested:
        names = [INPUT]
    for name in names if inputs.alone else ():
        if name != INPUT:
            raise InputError(f'value_and_grad: no input is named "{name}"; a positional input is named "{INPUT}"')
    targets = Targets.of("value_and_grad", inputs, names, requested=requested)
    if gradients.accumulate:
        check_leaves(targets)
    return targets


def _adds_in_place(plan: Plan, targets: Targets | None, gradients: Gradients | None) -> bool:
    """Whether a kernel may add to the leaves' `.grad`: where its gradient is all there is."""
    if targets is None or gradients is None or not gradients.accumulate:
        return False
    return len(plan) == 1 and isinstance(plan.groups[0].fused, FusedElements) and prepare(targets.leaves)


def _makes_tracers(inputs: CallInputs) -> bool:
    """Whether the call is inside jit, vmap or the like although no input is: a constant made here is traced."""
    return bool(events.handlers) and inputs.ops is not None and inputs.ops.tracing(inputs.ops.zero(inputs.like))


def _checked_step(step: Any) -> Any:
    """The step as a whole number, or as the 0-d array of PyTorch or JAX that it is."""
    if step is None:
        return None
    ops = owner(step)
    if ops is not None and ops.LIBRARY == "NumPy" and step.dtype.kind in "iu" and not step.shape:
        step, ops = int(step), None
    if ops is not None and ops.LIBRARY != "NumPy" and not len(step.shape):
        return step
    if ops is None and is_whole(step) and step >= 0:
        return step
    raise OptionError("pipeline", "step", step, "a whole number of at least 0, or a 0-d array of one")
