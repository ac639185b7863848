"""The client of the leader: a `LocalTrainingClient` whose passes are shared with the other processes."""

import contextlib
import itertools
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....errors import PenaltiesError
from ...futures import TrainingFuture
from ...types import ForwardBackwardOutput, OptimStepResponse, SampleResponse, SamplingParams, TensorData
from ..batch import Batch, Row, rows_of
from ..graph import Backward, Graph, layers_read
from ..losses import loss_of
from ..optimizer import check_adam
from ..parts import Limits
from ..passes import added, leaf_of
from ..sampling import checked_draw
from ..sweep import Sweep
from .group import Group, LostError
from .member import Member
from .orders import CLOSE, MAKE, Order
from .shares import Counts, Share, by_tokens, evenly, one_each

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ParallelTrainingClient"]

_KIND: Final = "TorchLossReturn"
_clients: Final = itertools.count()


class ParallelTrainingClient(Member):
    """A `LocalTrainingClient` in the first of several processes, of which each passes a share of the data.

    Your own loss is computed here, over all data; the gradients of all processes are summed up here, the optimizer
    steps here, and the others get the parameters. Everything else is done here as by one process.
    """

    def __init__(self, group: Group, model: str | Path = "tiny", *, shard: bool = False, **options: Any) -> None:
        """Have every process load the model; the other options are those of `LocalTrainingClient`."""
        self._number = next(_clients)
        self._graphs = itertools.count()
        self._sweeps = itertools.count(1)
        self._dropped: deque[int] = deque()
        """Graphs that are gone here; the others learn of it with the next order."""
        self._closed = False
        self._in_step = True
        with group.ordering([Order(self._number, MAKE, (model, options, shard))] * group.size):
            super().__init__(group, model, options, shard=shard)
        self._most = self._limits
        if shard:
            # Shares say how much goes through a model that is run in step.
            self._most = Limits("LocalTrainingClient", self._limits.rows, self._limits.tokens)
        if shard:
            self._model.base.register_forward_pre_hook(self._check_in_step)
        self._together("publish")

    def _check_in_step(self, *_: Any) -> None:
        """Raise where the model runs without the others, for which it would wait."""
        if not self._in_step:
            raise PenaltiesError("a sharded model runs in all processes, by the methods of its client alone")

    def _together(self, operation: str, *arguments: Any, each: Sequence[tuple[Any, ...]] | None = None) -> Any:
        """Have all processes do it; returns what comes of it here.

        `each` has further arguments for each process, before the common ones.
        """
        mine, *others = [()] * self._group.size if each is None else each
        dropped = tuple(self._dropped.popleft() for _ in range(len(self._dropped)))
        seed = zlib.crc32(self._generator.get_state().numpy().tobytes())
        orders = [Order(self._number, operation, (*one, *arguments), dropped, seed) for one in others]
        with self._group.ordering([None, *orders]):
            self._in_step = True
            try:
                self.forget(dropped)
                return getattr(self, operation)(*mine, *arguments)
            finally:
                self._in_step = False

    def _shares(self, rows: Sequence[Row]) -> list[Share]:
        """About as much for each process; where that would be several parts for some of them, a part each if it can."""
        count = self._group.size
        shares = evenly(rows, count, self._most.rows, self._most.tokens) if self._shard else by_tokens(rows, count)
        parts = None if self._fit(shares) else self._most.of(rows).cut(1)
        return shares if parts is None or len(parts) > count else one_each(parts, count, in_step=self._shard)

    def _fit(self, shares: Sequence[Share]) -> bool:
        """Whether each process has one part."""
        return all(
            len(self._most.of(share.rows).batches) == 1
            if share.at_once is None
            else len(share.rows) + len(share.added) <= share.at_once
            for share in shares
            if share.rows
        )

    # Passes.

    def forward(
        self, data: Sequence[Any], loss_fn: str = "cross_entropy", loss_fn_config: Mapping[str, Any] | None = None
    ) -> TrainingFuture[ForwardBackwardOutput]:
        """As by one process."""
        return self._shared_pass("forward", data, loss_fn, loss_fn_config)

    def forward_backward(
        self, data: Sequence[Any], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> TrainingFuture[ForwardBackwardOutput]:
        """As by one process."""
        return self._shared_pass("forward_backward", data, loss_fn, loss_fn_config)

    def forward_initial(self, data: Sequence[Any]) -> TrainingFuture[ForwardBackwardOutput]:
        """As by one process."""
        self._model.check_initial("forward_initial")
        return self._submit_shares("forward_initial", rows_of(self._model, data), ())

    def _shared_pass(
        self, function: str, data: Any, loss_fn: Any, config: Mapping[str, Any] | None
    ) -> TrainingFuture[ForwardBackwardOutput]:
        rows = rows_of(self._model, data, loss_of(function, loss_fn, config).read)
        return self._submit_shares(function, rows, (loss_fn,))

    def _submit_shares(
        self, function: str, rows: Sequence[Row], arguments: tuple[Any, ...]
    ) -> TrainingFuture[ForwardBackwardOutput]:
        shares = self._shares(rows)

        def run() -> ForwardBackwardOutput:
            each = [(function, share) for share in shares]
            found: list[Any] = self._together("pass_share", arguments, each=each)
            outputs = [
                row
                for output, share in zip(found, shares, strict=True)
                if output is not None
                for row in output.loss_fn_outputs[: len(share.rows)]
            ]
            metrics = [output.metrics for output in found if output is not None]
            return ForwardBackwardOutput(
                _KIND, outputs, {name: float(sum(one[name] for one in metrics)) for name in metrics[0]}
            )

        return self._worker.submit(run)

    def forward_with_graph(
        self,
        data: Sequence[Any],
        reads: Sequence[str] = (),
        *,
        evaluate: bool = False,
        lazy: bool = False,
        initial: bool = False,
    ) -> TrainingFuture[Graph]:
        """As by one process; the tensors of all data come together here."""
        layers_read(self._model, reads)
        if initial:
            self._model.check_initial("forward_with_graph(initial=True)")
        rows = rows_of(self._model, data)
        options = {"evaluate": evaluate, "lazy": lazy, "initial": initial}
        return self._submit_gathered(rows, reads, options)

    def _submit_gathered(
        self,
        rows: Sequence[Row],
        reads: Sequence[str],
        options: Mapping[str, bool],
        backward: Backward | None = None,
        sweep: int | None = None,
    ) -> TrainingFuture[Graph]:
        def forward() -> Graph:
            whole, key = Batch(rows), next(self._graphs)
            passed = _Gathered(self._together, whole, self._shares(rows), key, reads, options, sweep)
            # Dropped without a backward, it is dropped in all processes.
            weakref.finalize(passed, self._dropped.append, key)
            logprobs = whole.unpack(passed.packed["logprobs"].detach().cpu().numpy())
            output = ForwardBackwardOutput(_KIND, [{"logprobs": TensorData.from_numpy(one)} for one in logprobs])
            check = self._unchanged()
            pull = partial(self._submit_backward, check) if backward is None else backward
            return Graph(whole, passed, output, self._model.parameters, check, pull)

        return self._worker.submit(forward)

    def sweep(
        self, data: Sequence[Any], reads: Sequence[str] = (), *, lazy: bool = False, together: int = 1
    ) -> Sweep | None:
        """As by one process: each takes a part at a time, and gradients add up there until the end."""
        layers_read(self._model, reads)
        rows = rows_of(self._model, data)
        parts = self._most.of(rows).cut(together)
        if parts is None or self._fit(self._shares(rows)):
            return None
        size, number = self._group.size, next(self._sweeps)
        rounds = [[row for part in parts[start : start + size] for row in part] for start in range(0, len(parts), size)]
        options = {"evaluate": False, "lazy": lazy, "initial": False}

        def forward(some: Sequence[Row], backward: Backward) -> TrainingFuture[Graph]:
            return self._submit_gathered(some, reads, options, backward, number)

        def accumulate(gradients: "Sequence[Tensor | None]", direct: "Mapping[str, Tensor]") -> None:
            self._accumulate(added(gradients, self._together("sum_held", number)), direct)

        read = partial(rows_of, self._model)
        return Sweep(rounds, read, list(self._model.parameters), forward, self._worker.submit, accumulate)

    # Parameters.

    def optim_step(self, adam_params: Any) -> TrainingFuture[OptimStepResponse]:
        """A step here, whose result the other processes get."""
        check_adam(adam_params)
        step = super().optim_step

        def run() -> OptimStepResponse:
            response = step(adam_params).result()
            self._together("publish")
            return response

        return self._worker.submit(run)

    def _submit_load(self, function: str, path: str | Path, *, optimizer: bool) -> TrainingFuture[None]:
        load = super()._submit_load

        def run() -> None:
            load(function, path, optimizer=optimizer).result()
            self._together("publish")

        return self._worker.submit(run)

    # Samples.

    def sample(self, prompt: Any, num_samples: int = 1, sampling_params: Any = None) -> TrainingFuture[SampleResponse]:
        """As by one process: here, or by all of them if each has but a part of the model."""
        if not self._shard:
            return super().sample(prompt, num_samples, sampling_params)
        given = (prompt, num_samples, sampling_params or SamplingParams())
        checked_draw(self._model, *given)
        return self._worker.submit(lambda: self._together("draw_share", self._generator.get_state(), given))

    # Closing.

    def close(self) -> None:
        """Finish all submitted work, and close the client in every process."""
        super().close()
        if not self._closed:
            self._closed = True
            orders = [Order(self._number, CLOSE)] * self._group.size
            # Processes that are gone have nothing to close.
            with contextlib.suppress(LostError), self._group.ordering(orders):
                pass


class _Gathered:
    """A pass of which every process has a share."""

    def __init__(
        self,
        together: Callable[..., Any],
        whole: Batch,
        shares: Sequence[Share],
        key: int,
        reads: Sequence[str],
        options: Mapping[str, bool],
        sweep: int | None = None,
    ) -> None:
        """Run the model in all processes; of a `sweep`, gradients stay where they are until its end."""
        self._together, self._whole, self._key, self._sweep = together, whole, key, sweep
        self._counts = Counts.of(shares)
        each = [(key, share) for share in shares]
        found: dict[str, Any] = together("graph_share", list(reads), options, self._counts, each=each)
        parts = found["logprobs"].split([int(np.prod(shape)) for shape in whole.shapes])
        found["logprobs"] = whole.pack([part.view(shape) for part, shape in zip(parts, whole.shapes, strict=True)])
        for packed in found.values():
            leaf_of(packed).requires_grad_(not (options["evaluate"] or options["initial"]))
        self.packed: dict[str, Any] = found

    def pull(self, slopes: "Mapping[str, Tensor]", *, keep: bool = False) -> "list[Tensor | None]":
        """A backward in all processes."""
        import torch

        flat: dict[str, Any] = dict(slopes)
        if "logprobs" in flat:
            flat["logprobs"] = torch.cat([one.reshape(-1) for one in self._whole.unpack(flat["logprobs"])])
        # The others get theirs as tensors, not with the order.
        others = [(self._key, dict.fromkeys(flat))] * (len(self._counts.positions) - 1)
        sweep = None if keep else self._sweep
        return self._together("pull_share", self._counts, keep, sweep, each=[(self._key, flat), *others])
