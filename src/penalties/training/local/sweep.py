"""Data that go through a model in parts, once: the graph of a part is freed by its backward before the next one."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..futures import TrainingFuture
from ..types import ForwardBackwardOutput
from .graph import Backward, Graph
from .passes import Pass, added

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import Row

__all__ = ["Sweep"]

Gradients = Sequence["Tensor | None"]


class Sweep:
    """The parts of some data, each a graph whose gradients add up here until `finish` accumulates them all at once.

    Iterate over it: each part is the indices of its data and their graph. Call `graph.submit` before the next one.
    """

    def __init__(
        self,
        parts: "Sequence[Sequence[Row]]",
        read: "Callable[[Sequence[Any]], Sequence[Row]]",
        names: Sequence[str],
        forward: "Callable[[Sequence[Row], Backward], TrainingFuture[Graph]]",
        submit: Callable[[Callable[[], Any]], TrainingFuture[Any]],
        accumulate: "Callable[[Gradients, Mapping[str, Tensor]], None]",
    ) -> None:
        """`read` makes rows of data; `names` are those of the parameters.

        `submit` runs an operation after all that were submitted before.
        """
        self._parts = parts
        self._read = read
        self._names = names
        self._forward = forward
        self._submit = submit
        self._accumulate = accumulate
        self._gradients: list[Tensor | None] = [None] * len(names)
        self._outputs: list[ForwardBackwardOutput] = []
        self._backwards: list[TrainingFuture[None]] = []
        self._check: Callable[[], None] | None = None
        """Raises once the parameters are others than at the first part."""

    def __len__(self) -> int:
        """The number of parts."""
        return len(self._parts)

    def replace(self, data: Sequence[Any]) -> None:
        """Take other data of the same lengths, such as with more targets, in the same parts."""
        rows = iter(self._read(data))
        self._parts = [list(itertools.islice(rows, len(part))) for part in self._parts]

    def __iter__(self) -> Iterator[tuple[range, Graph]]:
        """Each part: the indices of its data, and their graph."""
        start = 0
        for rows in self._parts:
            data = range(start, start + len(rows))
            graph = self._forward(rows, self._backward).result()
            self._outputs.append(graph.output)
            self._check = self._check or graph.check
            yield data, graph
            # What it holds must not outlive its backward.
            del graph
            start = data.stop

    def _backward(
        self, passed: Pass, slopes: "Mapping[str, Tensor]", direct: "Mapping[str, Tensor]"
    ) -> TrainingFuture[None]:
        def backward() -> None:
            self._unchanged()
            found = added(passed.pull(slopes), [direct.get(name) for name in self._names])
            self._gradients = added(self._gradients, found)

        self._backwards.append(self._submit(backward))
        return self._backwards[-1]

    def _unchanged(self) -> None:
        assert self._check is not None, "a part comes first"
        self._check()

    def finish(self) -> TrainingFuture[ForwardBackwardOutput]:
        """Add the gradients of all parts to the accumulated ones; returns the output of a plain forward."""

        def finish() -> ForwardBackwardOutput:
            for backward in self._backwards:
                # Each is done by now, and raises if it failed.
                backward.result()
            self._unchanged()
            self._accumulate(self._gradients, {})
            outputs = [one for output in self._outputs for one in output.loss_fn_outputs]
            return ForwardBackwardOutput(self._outputs[0].loss_fn_output_type, outputs)

        return self._submit(finish)
