"""Evaluation on held-out data: the base loss and every term, with forward passes only."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ...execution.executor import Executor
from ...pipeline import Pipeline
from ...pipeline.output import LossOutput, TermOutput
from ...training.call import Call
from ..runs.references import References
from .examples import Examples

__all__ = ["Evaluated", "averaged", "evaluate", "every_term", "measured"]

Evaluated: TypeAlias = tuple[LossOutput, int]
"""The output of a batch as numbers, and the number of its data."""


def every_term(pipeline: Pipeline) -> Pipeline:
    """The pipeline with terms that run at every step: an evaluation has all of them, whatever their `every` is."""
    return Pipeline([term if term.every == 1 else term.replace(every=1) for term in pipeline])


def evaluate(
    client: Any,
    batches: Iterable[list[Any]],
    base: Any,
    pipeline: Pipeline,
    references: References,
    *,
    executor: Executor,
    step: int,
    state: Mapping[str, Any],
    server: str,
    examples: Examples | None = None,
) -> LossOutput | None:
    """The objective as it is at this step, averaged over some batches; None if there are none.

    Stateful terms get their state from training; the state that they return is dropped. `examples` look at each batch
    that has one target per position.
    """
    found: list[Evaluated] = []
    for data in batches:
        given = references.providers
        call = Call(client, data, base, pipeline, given, False, False, executor, None, server, evaluate=True)
        with call.running(None, step, state) as arguments:
            output = executor.run(inputs=call.begin(), **arguments)
            if examples and call.batch.candidates is None:
                examples.add(call.batch, call.logprobs())
        found.append((output.read(), len(data)))
    return averaged(found) if found else None


def measured(output: LossOutput) -> dict[str, Any]:
    """The metrics of an evaluation by name; that of a term which failed is None."""
    return {"loss": output.total, **dict.fromkeys(output.terms), **output.metrics()}


def averaged(found: Sequence[Evaluated]) -> LossOutput:
    """The mean over batches, weighted by their data; batches in which a term was skipped do not count for it."""
    first = found[0][0]
    base = None if first.base is None else _term([(out.base, count) for out, count in found])
    return LossOutput.of([_term([(out[name], count) for out, count in found]) for name in first.terms], base=base)


def _term(rows: Sequence[tuple[Any, int]]) -> TermOutput:
    there = [(row, count) for row, count in rows if row.value is not None]
    first: TermOutput = rows[0][0]
    errors = [row.error for row, _ in rows if row.error is not None]
    if not there:
        return first
    names = dict.fromkeys(name for row, _ in there for name in row.metrics)
    durations = [row.duration for row, _ in there if row.duration is not None]
    return TermOutput(
        first.name,
        _mean([(row.value, count) for row, count in there]),
        first.weight,
        metrics={
            name: _mean([(row.metrics[name], count) for row, count in there if name in row.metrics]) for name in names
        },
        duration=sum(durations) if durations else None,
        error=errors[0] if errors else None,
    )


def _mean(values: Sequence[tuple[float, int]]) -> float:
    return sum(value * count for value, count in values) / sum(count for _, count in values)
