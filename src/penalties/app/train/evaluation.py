"""Held-out data: the base loss and every term, without a backward."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...execution.executor import Executor
from ...pipeline import Pipeline
from ...pipeline.output import LossOutput, TermOutput
from ...training.custom_loss import forward_backward_custom
from ...training.futures import TrainingFuture
from ..runs.references import References

__all__ = ["Evaluated", "averaged", "evaluate", "every_term"]

Evaluated = tuple[LossOutput, int]
"""The output of a batch in numbers, and how many data it had."""


def every_term(pipeline: Pipeline) -> Pipeline:
    """The pipeline with terms that run at every step: one that rests now and then is not to miss an evaluation."""
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
) -> LossOutput | None:
    """The objective as it is at this step, averaged over some batches; None where there are none.

    Terms that remember are given what they remember of training, and nothing of this is kept.
    """
    only_forward = _Forward(client)
    found: list[Evaluated] = []
    for data in batches:
        arrays = references.arrays(client, data, step)
        output = forward_backward_custom(
            only_forward,
            data,
            base,
            regularizers=pipeline,
            references=arrays,
            executor=executor,
            step=step,
            state=state,
            server=server,
        ).result()
        found.append((output.custom_loss.read(), len(data)))
    return averaged(found) if found else None


def averaged(found: Sequence[Evaluated]) -> LossOutput:
    """The mean over batches, each counted by its data; a term that was skipped in one is that of the others."""
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


class _Forward:
    """A client whose model does not change: what is sent back to it goes nowhere."""

    def __init__(self, client: Any) -> None:
        """Of a client that trains."""
        self._client = client
        self._passed: Any = None
        if hasattr(client, "forward_with_graph"):
            self.device: Any = client.device
            self.forward_with_graph = self._graph

    @property
    def model_id(self) -> Any:
        """The client's."""
        return getattr(self._client, "model_id", None)

    def forward(self, data: Sequence[Any], loss_fn: str) -> Any:
        """The client's own forward, which is remembered."""
        self._passed = self._client.forward(data, loss_fn)
        return self._passed

    def forward_backward(self, data: Sequence[Any], loss_fn: str) -> Any:
        """What the forward gave, and nothing more."""
        return self._passed

    def _graph(self, data: Sequence[Any], reads: Sequence[str]) -> Any:
        return self._client.forward_with_graph(data, reads=reads).then(_Kept)


class _Kept:
    """A forward whose graph is dropped instead of gone through."""

    def __init__(self, graph: Any) -> None:
        """The client's own graph."""
        self.output = graph.output
        self.inputs = graph.inputs
        self.packed = graph.packed

    def submit(self, gradients: Mapping[str, Any]) -> TrainingFuture[Any]:
        """What the forward gave."""
        return TrainingFuture[Any].of(self.output)
