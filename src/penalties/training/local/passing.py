"""The passes of a local client: losses by name, and graphs for your own, in parts within its limits."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arrays import Logits
from ...errors import GradientError
from ..futures import TrainingFuture
from ..types import ForwardBackwardOutput, TensorData
from .batch import Batch, Row, rows_of
from .forward import by_parameter, differentiated, on_device, run
from .graph import Backward, Graph, layers_read
from .losses import Loss, loss_of
from .model import LocalModel
from .modes import Trained
from .parts import Limits
from .passes import Kept, Pass, Reads, Recomputed, added, parameter_gradients
from .sweep import Sweep
from .worker import Worker

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PassingClient"]

_KIND = "TorchLossReturn"


class PassingClient:
    """A model, and its passes one after another; gradients accumulate at the parameters."""

    _model: LocalModel
    _limits: Limits
    _generator: Any
    """Seeds what a pass draws."""
    _worker: Worker
    _changes: int
    """Counts changes of the parameters: a graph belongs to one state of them."""

    def forward(
        self, data: Sequence[Any], loss_fn: str = "cross_entropy", loss_fn_config: Mapping[str, Any] | None = None
    ) -> TrainingFuture[ForwardBackwardOutput]:
        """The loss and the log-probability of every target, without a gradient."""
        return self._submit_pass("forward", data, loss_fn, loss_fn_config, backward=False)

    async def forward_async(
        self, data: Sequence[Any], loss_fn: str = "cross_entropy", loss_fn_config: Mapping[str, Any] | None = None
    ) -> TrainingFuture[ForwardBackwardOutput]:
        """`forward`, for code that awaits."""
        return self.forward(data, loss_fn, loss_fn_config)

    def forward_backward(
        self, data: Sequence[Any], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> TrainingFuture[ForwardBackwardOutput]:
        """The same, and add the gradient of the loss to the accumulated gradient.

        `"cross_entropy"` is Σ −logprob·weight, `"importance_sampling"` Σ −exp(logprob − old)·advantage. A pass that
        fails adds nothing.
        """
        return self._submit_pass("forward_backward", data, loss_fn, loss_fn_config, backward=True)

    async def forward_backward_async(
        self, data: Sequence[Any], loss_fn: str, loss_fn_config: Mapping[str, Any] | None = None
    ) -> TrainingFuture[ForwardBackwardOutput]:
        """`forward_backward`, for code that awaits."""
        return self.forward_backward(data, loss_fn, loss_fn_config)

    def forward_initial(self, data: Sequence[Any]) -> TrainingFuture[ForwardBackwardOutput]:
        """The log-probability of every target under the model before any training."""
        self._model.check_initial("forward_initial")
        parts = self._limits.of(rows_of(self._model, data))

        def initial() -> ForwardBackwardOutput:
            with self._model.untrained() as model:
                return parts.fit(lambda batches: self._pass(model, batches, None, backward=False))

        return self._worker.submit(initial)

    async def forward_initial_async(self, data: Sequence[Any]) -> TrainingFuture[ForwardBackwardOutput]:
        """`forward_initial`, for code that awaits."""
        return self.forward_initial(data)

    def forward_with_graph(
        self,
        data: Sequence[Any],
        reads: Sequence[str] = (),
        *,
        evaluate: bool = False,
        lazy: bool = False,
        initial: bool = False,
    ) -> TrainingFuture[Graph]:
        """A forward for your own loss: pass the loss's gradient to `graph.backward`.

        `reads` names what the loss reads besides log-probabilities and parameters: `"logits"`, and `"hidden.<layer>"`,
        where layer 0 is the embedding. If all data go through the model at once, their graph is kept; otherwise the
        backward computes each part once more. With `evaluate` nothing is kept for a backward. With `lazy` logits are
        `penalties.Logits` where the output layer allows it. With `initial` it is a pass of the model before any
        training, of which nothing is kept either.
        """
        rows = rows_of(self._model, data)
        return self._submit_graph(
            rows, self._requested(reads, lazy=lazy), None, evaluate=evaluate or initial, initial=initial
        )

    def _requested(self, reads: Sequence[str], *, lazy: bool) -> Reads:
        logits, layers = layers_read(self._model, reads)
        return Reads(logits, lazy, layers)

    def _submit_graph(
        self,
        rows: Sequence[Row],
        requested: Reads,
        backward: Backward | None,
        *,
        evaluate: bool = False,
        initial: bool = False,
    ) -> TrainingFuture[Graph]:
        if initial:
            self._model.check_initial("forward_with_graph(initial=True)")
        parts = self._limits.of(rows)

        def passed_by(model: LocalModel, batches: Sequence[Batch]) -> Pass:
            if len(batches) > 1:
                return Recomputed(model, parts, requested, evaluate=evaluate)
            return Kept(model, parts, requested, batches[0], evaluate=evaluate)

        def forward() -> Graph:
            with self._model.untrained() if initial else self._passing(training=not evaluate) as model:
                passed, whole = parts.fit(partial(passed_by, model)), Batch(parts.rows)
            found = {"logprobs": passed.packed["logprobs"].detach().cpu().numpy()}
            output = ForwardBackwardOutput(_KIND, _outputs(whole, found))
            check = self._unchanged()
            pull = partial(self._submit_backward, check) if backward is None else backward
            return Graph(whole, Trained(model, passed), output, self._model.parameters, check, pull)

        return self._worker.submit(forward)

    def sweep(
        self, data: Sequence[Any], reads: Sequence[str] = (), *, lazy: bool = False, together: int = 1
    ) -> Sweep | None:
        """The data in parts for one pass: a graph for each, and the gradients of all accumulated at the end.

        For a loss that is a sum over parts, which then costs no second forward. Each run of so many data `together`
        stays in one part. None if all data go through the model at once, or if such a run does not.
        """
        requested = self._requested(reads, lazy=lazy)
        parts = self._limits.of(rows_of(self._model, data)).cut(together)
        if parts is None:
            return None

        def forward(rows: Sequence[Row], backward: Backward) -> TrainingFuture[Graph]:
            return self._submit_graph(rows, requested, backward)

        read = partial(rows_of, self._model)
        return Sweep(parts, read, list(self._model.parameters), forward, self._worker.submit, self._accumulate)

    async def forward_with_graph_async(
        self,
        data: Sequence[Any],
        reads: Sequence[str] = (),
        *,
        evaluate: bool = False,
        lazy: bool = False,
        initial: bool = False,
    ) -> TrainingFuture[Graph]:
        """`forward_with_graph`, for code that awaits."""
        return self.forward_with_graph(data, reads, evaluate=evaluate, lazy=lazy, initial=initial)

    def _submit_pass(
        self, function: str, data: Any, loss_fn: Any, config: Mapping[str, Any] | None, *, backward: bool
    ) -> TrainingFuture[ForwardBackwardOutput]:
        loss = loss_of(function, loss_fn, config)
        # In the caller's thread: it overlaps running work, and errors are raised where they belong.
        parts = self._limits.of(rows_of(self._model, data, loss.read))

        def passed() -> ForwardBackwardOutput:
            with self._passing(training=backward) as model:
                return parts.fit(lambda batches: self._pass(model, batches, loss, backward=backward))

        return self._worker.submit(passed)

    @contextmanager
    def _passing(self, *, training: bool) -> Generator[LocalModel]:
        with self._model.passing(training=training, generator=self._generator):
            yield self._model

    def _pass(
        self, model: LocalModel, parts: Sequence[Batch], loss: Loss | None, *, backward: bool
    ) -> ForwardBackwardOutput:
        import torch

        outputs: list[Mapping[str, TensorData]] = []
        gradients: list[Tensor | None] = [None] * len(model.parameters)
        total = 0.0
        for batch in parts:
            # Before the pass: a copy to a GPU waits for everything queued there.
            arrays = {name: on_device(model, array) for name, array in batch.arrays.items()}
            slope: Tensor | None = None
            head: list[Tensor | None] = [None] * len(gradients)
            with torch.set_grad_enabled(backward):
                passed = run(model, batch)
                if loss is not None and backward and isinstance(passed.logits, Logits):
                    live = passed.logits.hidden
                    found, slopes = differentiated(passed.logits, passed.targets, loss.values, arrays)
                    slope = slopes["hidden"]
                    at_head = by_parameter(model.parameters, passed.logits, slopes)
                    head = [at_head.get(name) for name in model.parameters]
                else:
                    live = passed.logprobs
                    found = {"logprobs": live.detach()}
                    if loss is not None:
                        found["elementwise_loss"], slope = loss.values(found["logprobs"], arrays)
            # Before the backward, for the same reason; the rest happens while it runs.
            host = dict(zip(found, torch.stack(list(found.values())).cpu().numpy(), strict=True))
            if backward and slope is not None:
                gradients = added(gradients, parameter_gradients(model.parameters, [live], [slope]))
                gradients = added(gradients, head)
            outputs += _outputs(batch, host)
            total += 0.0 if loss is None else float(host["elementwise_loss"].sum(dtype=np.float64))
        if backward:
            self._accumulate(gradients, {})
        return ForwardBackwardOutput(_KIND, outputs, {} if loss is None else {"loss:sum": total})

    def _unchanged(self) -> Callable[[], None]:
        """A check that raises once the parameters have changed."""
        before = self._changes

        def check() -> None:
            if before != self._changes:
                raise GradientError(
                    "Graph.backward: the parameters changed after the forward; call it before any optim_step"
                )

        return check

    def _submit_backward(
        self, check: Callable[[], None], passed: Pass, slopes: "Mapping[str, Tensor]", direct: "Mapping[str, Tensor]"
    ) -> TrainingFuture[None]:
        def backward() -> None:
            check()
            self._accumulate(passed.pull(slopes), direct)

        return self._worker.submit(backward)

    def _accumulate(self, gradients: "Sequence[Tensor | None]", direct: "Mapping[str, Tensor]") -> None:
        """Add to the accumulated gradients: all at once, after everything that can fail."""
        import torch

        for (name, one), gradient in zip(self._model.parameters.items(), gradients, strict=True):
            for more in (gradient, direct.get(name)):
                if more is not None:
                    # Contiguous like the parameter: the fused optimizer reads both in memory order.
                    one.grad = more.contiguous() if one.grad is None else one.grad.add_(more)
            if one.grad is None:
                one.grad = torch.zeros_like(one)


def _outputs(batch: Batch, packed: Mapping[str, Any]) -> list[Mapping[str, TensorData]]:
    """One dict per datum, from arrays that are packed like the targets."""
    lists = {name: batch.unpack(array) for name, array in packed.items()}
    return [
        {name: TensorData.from_numpy(arrays[index]) for name, arrays in lists.items()}
        for index in range(len(batch.shapes))
    ]
