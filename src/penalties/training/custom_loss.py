"""Training with your own loss through any client: forward, terms, and the gradient sent back."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import GradientError
from ..execution.executor import Executor
from ..pipeline.term import Weight
from .call import Call
from .futures import TrainingFuture
from .sweeping import sweeping_of

__all__ = ["forward_backward_custom", "forward_backward_custom_async"]


def forward_backward_custom(
    client: Any,
    data: Sequence[Any],
    loss_fn: Any,
    *,
    regularizers: Any = (),
    references: Mapping[str, Any] | None = None,
    track_grad_norms: bool | str = False,
    weights: Mapping[str, Weight] | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    step: Any = None,
    state: Mapping[str, Any] | None = None,
    cosines: bool = False,
    server: str = "tinker",
) -> TrainingFuture[Any]:
    """Train a client's model on `loss_fn + Σ weight·term`, all of them functions of its log-probabilities.

    `loss_fn(data, logprobs)` returns a loss, alone or with a dict of metrics, as in the SDK's own call. It can also be
    the name of a loss, a `Term`, or None for regularizers alone; a function with a parameter `reference` gets that
    reference too. `regularizers` is a list of terms, or of dicts with their arguments, or a `Pipeline`. Terms read
    `data`, `logprobs` (one tensor per datum), `flat_logprobs` and `lengths`, `mask`, and every reference by its name;
    with a model in this process also `params`, `logits` and `hidden.<layer>`. `references` maps a name to one array per
    datum, or to a provider. `weights`, `step` and `state` are those of a pipeline's call. `client` is one of the Tinker
    SDK's, a `LocalTrainingClient`, or any with their methods, and `server` says how its server reduces a loss: "sums"
    ("tinker") or "averages". Terms run on `executor`, by default one that calls share; `timeout` is for terms that have
    none, in seconds.

    The call waits for the forward, runs each term where it says, and returns once the backward has been sent, so that
    an `optim_step` sent next comes after it. `track_grad_norms` measures the gradient of each term at its inputs; with
    `"parameters"`, on a model in this process, at the trained parameters, by one backward pass per term. `cosines`
    measures the cosines between them. The result is the client's own, with `.custom_loss`, the `LossOutput`, and its
    numbers merged into the metrics. Nothing runs on the client's event loop.

    >>> from penalties.training import AdamParams, Datum, LocalTrainingClient, ModelInput, forward_backward_custom
    >>> data = [Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})]
    >>> with LocalTrainingClient("tiny") as client:
    ...     passed = forward_backward_custom(client, data, "cross_entropy", regularizers=["l1"])
    ...     stepped = client.optim_step(AdamParams(learning_rate=1e-3))
    ...     passed.result().custom_loss.names
    ('base_loss', 'l1')
    """
    call = Call(client, data, loss_fn, regularizers, references, track_grad_norms, cosines, executor, timeout, server)
    torch = call.torch
    with call.running(weights, step, state) as arguments, torch.inference_mode(False), torch.enable_grad():
        if (sweeping := sweeping_of(call, step)) is not None:
            return sweeping.run(arguments)
        output = call.executor.run(inputs=call.begin(), **arguments)
        return call.finish(*call.gradients(output))


async def forward_backward_custom_async(
    client: Any,
    data: Sequence[Any],
    loss_fn: Any,
    *,
    regularizers: Any = (),
    references: Mapping[str, Any] | None = None,
    track_grad_norms: bool | str = False,
    weights: Mapping[str, Weight] | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    step: Any = None,
    state: Mapping[str, Any] | None = None,
    cosines: bool = False,
    server: str = "tinker",
) -> TrainingFuture[Any]:
    """`forward_backward_custom`, with its arguments, without blocking the event loop.

    If the awaiting task is cancelled before the backward was sent, it is not sent.

    >>> import asyncio
    >>> from penalties.training import Datum, LocalTrainingClient, ModelInput, forward_backward_custom_async
    >>> async def step(client, data):
    ...     passed = await forward_backward_custom_async(client, data, "cross_entropy")
    ...     return (await passed).metrics["mean_nll"]
    >>> data = [Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})]
    >>> with LocalTrainingClient("tiny") as client:
    ...     asyncio.run(step(client, data)) > 0
    True
    """
    call = Call(client, data, loss_fn, regularizers, references, track_grad_norms, cosines, executor, timeout, server)
    if not call.torch.is_grad_enabled():
        # The mode belongs to the thread, which other tasks share: it is not ours to change while we wait.
        raise GradientError("forward_backward_custom_async: was awaited inside torch.no_grad(); await it outside")
    with call.running(weights, step, state) as arguments:
        if (sweeping := sweeping_of(call, step)) is not None:
            try:
                return await asyncio.to_thread(sweeping.run, arguments)
            finally:
                # A thread cannot be cancelled: it stops before the next part.
                sweeping.stopped.set()
        # In a thread: somebody's provider may block.
        inputs = await asyncio.to_thread(call.begin)
        output = await call.executor.run_async(inputs=inputs, **arguments)
        return call.finish(*await asyncio.to_thread(call.gradients, output))
