"""What every process does with its share of the data, on its own copy of the model."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ....arrays import Logits, logits_of
from ....errors import OptionError
from ...types import Datum, ModelInput, SampleResponse
from ..batch import Row
from ..client import LocalTrainingClient
from ..graph import Graph
from ..passes import added, leaf_of
from .group import FailedError, Group
from .orders import Order
from .sharding import check_sharded, mesh_of, shard_layers
from .shares import Counts, Share

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Member"]

T = TypeVar("T")

_LOGPROBS: Final = "logprobs"


class Member(LocalTrainingClient):
    """A client in one of several processes. Each operation is called in all of them, with a share of the rows each.

    What comes out is the leader's; the parameters of the others follow its own, and they keep no gradients. With
    `shard` the frozen weights are spread over the processes, which then run the model in step.
    """

    def __init__(self, group: Group, model: str | Path, options: Mapping[str, Any], *, shard: bool) -> None:
        """Load the model, which must be the same everywhere."""
        self._group = group
        self._shard = shard
        self._kept: dict[int, Graph] = {}
        """Graphs whose backward is yet to come."""
        self._held: tuple[int, list[Tensor | None]] = 0, []
        """The number of a sweep, and the gradients of its parts so far."""
        self._mesh: Any = None
        self._spread: Callable[[], None] = lambda: None
        """Called once the weights are spread, so that the next process loads them."""
        load = super().__init__

        def loaded() -> None:
            where = group.device(options.get("device"))
            if not shard:
                load(model, **{**options, "device": where})
                return
            check_sharded(options)
            self._mesh = mesh_of(where, group.size)
            # A machine may not have the memory for all of them at once.
            with group.in_turn() as done:
                self._spread = done
                load(model, **{**options, "device": where})

        _, weights = group.agreed(loaded, lambda: self._model.fingerprint)
        for rank, one in enumerate(weights):
            if one != weights[0]:
                where = f"process {rank} of {group.size}"
                raise FailedError(f'{where}: "{model}" has different weights there than in process 0')
        # In this thread, and in that which runs the model.
        self._use_gpu()
        self._worker.submit(self._use_gpu).result()

    def _check_norms(self, rows: Any, tokens: Any) -> None:
        """Raise if the share of a process would be another step than the whole."""
        if norms := self._model.trained_norms:
            why = f"that of {norms[0]} computes something else for the share of each process"
            expected = f"a model without batch normalisation that is trained: {why}"
            raise OptionError("LocalTrainingClient", "model", self._model.name, expected)

    def _prepare(self, model: Any, device: Any) -> None:
        if self._shard:
            shard_layers(model, self._mesh)
            model.to(device)
            self._spread()

    def _use_gpu(self) -> None:
        """Make the process's GPU that of this thread."""
        import torch

        if self._model.device.type == "cuda":
            torch.cuda.set_device(self._model.device)

    # Operations.

    def pass_share(self, function: str, share: Share, arguments: Sequence[Any]) -> list[Any] | None:
        """`forward`, `forward_backward` or `forward_initial`; the output of each process, None if it has no rows."""
        run = getattr(super(), function)
        before = self._taken()
        try:
            output = self._agreed(share, lambda data: run(data, *arguments).result())
            gradients = self._summed(self._taken()) if function == "forward_backward" else []
        finally:
            self._put_back(before)
        if self._group.leads and gradients:
            self._accumulate(gradients, {})
        return self._group.collected(output)

    def graph_share(
        self, key: int, share: Share, reads: Sequence[str], options: Mapping[str, Any], counts: Counts
    ) -> dict[str, Any]:
        """`forward_with_graph`; the tensors of all data, log-probabilities flat."""
        run = super().forward_with_graph
        graph: Graph | None = self._agreed(share, lambda data: run(data, reads, **options).result())
        if graph is None:
            return {}
        if not (options["evaluate"] or options["initial"]):
            self._kept[key] = graph
        found: dict[str, Any] = {}
        for name in (_LOGPROBS, *(name for name in graph.inputs if name != "params")):
            whole = self._group.gathered(_flat(graph, name), counts.rows(name))
            mine = graph.packed.get(name)
            found[name] = mine.with_hidden(whole) if isinstance(mine, Logits) else whole
        return found

    def pull_share(
        self, key: int, slopes: "Mapping[str, Tensor | None]", counts: Counts, keep: bool, sweep: int | None = None
    ) -> "list[Tensor | None]":
        """The gradient at each parameter from those at the tensors of a graph, which only the leader has.

        Those of a sweep add up in each process until `sum_held`.
        """
        graph = self._kept.get(key)
        own: dict[str, Any] = {}
        if graph is not None:
            for name, slope in slopes.items():
                own[name] = self._group.scattered(slope, counts.rows(name), _flat(graph, name).detach())
        nothing: list[Tensor | None] = [None] * len(self._model.parameters)
        gradients, _ = self._group.agreed(lambda: nothing if graph is None else self._pulled(graph, own, keep=keep))
        if not keep:
            self._kept.pop(key, None)
        if sweep is None:
            return self._summed(gradients)
        self._held = sweep, added(self._held_of(sweep), gradients)
        return nothing

    def sum_held(self, sweep: int) -> "list[Tensor | None]":
        """The gradients of all parts of a sweep."""
        held, self._held = self._held_of(sweep), (0, [])
        return self._summed(held)

    def _held_of(self, sweep: int) -> "list[Tensor | None]":
        """What is held of a sweep; of one before, which failed, nothing is."""
        number, held = self._held
        return held if number == sweep else [None] * len(self._model.parameters)

    def draw_share(self, generator: "Tensor", arguments: Sequence[Any]) -> SampleResponse:
        """`sample`, by all processes in step: from one state of the generator they draw the same."""
        self._generator.set_state(generator)
        run = super().sample
        drawn, _ = self._group.agreed(lambda: run(*arguments).result())
        return drawn

    def publish(self) -> None:
        """Take over the parameters of the leader."""
        self._group.published([one.detach() for one in self._model.parameters.values()])

    def obey(self, order: Order) -> None:
        """Do what the leader does, in another process."""
        self.forget(order.dropped)
        self._generator.manual_seed(order.seed + self._group.rank)
        getattr(self, order.operation)(*order.arguments)

    def forget(self, keys: Sequence[int]) -> None:
        """Drop graphs whose backward will not come."""
        for key in keys:
            self._kept.pop(key, None)

    def _agreed(self, share: Share, run: Callable[[list[Datum]], T]) -> T | None:
        """The result of a share, if it has rows, once every process has its own.

        Where memory ran out in one process, the next parts are smaller in all.
        """
        rows = [*share.rows, *share.added]
        if share.at_once is not None:
            self._limits.rows, self._limits.tokens = share.at_once, None
        result, limits = self._group.agreed(lambda: run(_data_of(rows)) if rows else None, lambda: self._limits.tokens)
        if self._limits.auto:
            self._limits.tokens = min((one for one in limits if one is not None), default=None)
        return result

    # Gradients.

    def _pulled(self, graph: Graph, slopes: Mapping[str, Any], *, keep: bool) -> "list[Tensor | None]":
        own = {name: _shaped(graph, name, slope) for name, slope in slopes.items()}
        if keep:
            return list(graph.pulled(own).values())
        before = self._taken()
        try:
            graph.backward(own)
            return self._taken()
        finally:
            self._put_back(before)

    def _summed(self, gradients: "Sequence[Tensor | None]") -> "list[Tensor | None]":
        import torch

        parameters = list(self._model.parameters.values())
        found: list[Tensor] = [
            torch.zeros_like(one) if gradient is None else gradient.contiguous()
            for one, gradient in zip(parameters, gradients, strict=True)
        ]
        self._group.summed(found)
        return list(found)

    def _taken(self) -> "list[Tensor | None]":
        """The accumulated gradients, which are then none."""
        parameters = self._model.parameters.values()
        found = [one.grad for one in parameters]
        for one in parameters:
            one.grad = None
        return found

    def _put_back(self, gradients: "Sequence[Tensor | None]") -> None:
        for one, gradient in zip(self._model.parameters.values(), gradients, strict=True):
            one.grad = gradient


def _data_of(rows: Sequence[Row]) -> list[Datum]:
    """Rows as data again, with nothing but what a pass reads."""
    return [
        Datum(ModelInput.from_ints(row.tokens.tolist()), {"target_tokens": row.targets, **row.arrays}) for row in rows
    ]


def _flat(graph: Graph, name: str) -> "Tensor":
    """A tensor of a graph as it travels: log-probabilities flat, since data may differ in targets per position."""
    import torch

    if name == _LOGPROBS:
        return torch.cat([one.reshape(-1) for one in graph.logprobs])
    return leaf_of(graph.packed[name])


def _shaped(graph: Graph, name: str, flat: Any) -> Any:
    """The reverse: log-probabilities with one tensor per datum; the leader has the gradient of the output layer."""
    if isinstance(graph.packed.get(name), Logits):
        return logits_of([flat, None, None], None)
    if name != _LOGPROBS:
        return flat
    parts = flat.split([one.numel() for one in graph.logprobs])
    return [part.view_as(one) for part, one in zip(parts, graph.logprobs, strict=True)]
