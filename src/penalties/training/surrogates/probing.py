"""Finding out how a server reduces, from the norms of gradients that it reports."""

import contextlib
import inspect
import math
import uuid
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from ...errors import GradientError, InputError
from ..futures import result_of
from ..local.optimizer import NORM
from ..reading import logprobs_of
from ..sdk import adam_for, data_for
from ..types import AdamParams, Datum, ModelInput
from .sending import FORWARD, REDUCTIONS, Array, Surrogate, forward_data

__all__ = ["probe"]

_FUNCTION: Final = "surrogates.probe"

_METHODS: Final = ("forward", "forward_backward", "optim_step")
_RESTORING: Final = ("save_state", "load_state_with_optimizer")

_NORMS: Final = (NORM, "skyrl.ai/grad_norm", "grad_norm")
"""What servers call the norm of the gradient in the metrics of a step."""

_LONG: Final = (1, 2, 3, 4, 5)
_SHORT: Final = _LONG[:3]
"""Tokens of any vocabulary. The second target has the same gradient in both: a causal model has read the same."""

_ALONE: Final = ((_LONG, 1.0),)
_TOGETHER: Final = ((_LONG, 3.0), (_SHORT, 9.0))
"""Data, and how often the gradient of the second target is sent with each."""

_RATIO: Final = 12.0
"""What the second gradient must be of the first. A server that divides by tokens or sequences is 17 % off, or more."""

_TOLERANCE: Final = 0.05
"""How far off it may be: servers compute in bfloat16."""

_KEPT: Final = 3600
"""Seconds that the server need keep the checkpoint: the least that the service accepts."""


def probe(client: Any, *, restore: bool = True) -> str:
    """How a client's server reduces a loss, `"sums"` or `"averages"`: the `server` of `forward_backward_custom`.

    Each surrogate is tried with two tiny passes, one of a single sequence and one of two with different lengths, whose
    gradients are multiples of each other. The exact surrogate is the one for which the norms that the server reports
    at `optim_step` have the same ratio. If none has, or the server reports no norms, an error says so. A client in
    this process takes gradients as they are: it sums, and nothing is run.

    Gradients only become visible in an optimizer step. Its learning rate is 0, so that no weight moves, but Adam's
    moments do. With `restore` the state is therefore saved first and loaded at the end, which leaves only a checkpoint
    on the server, named `penalties-probe-…`, that expires where the service allows it. `restore=False` is for a client
    that you throw away afterwards. Call it before training, or right after an `optim_step`: gradients that were
    accumulated before are lost.

    >>> from penalties.training import LocalTrainingClient, surrogates
    >>> with LocalTrainingClient("tiny") as client:
    ...     surrogates.probe(client)
    'sums'
    """
    if hasattr(client, "forward_with_graph"):
        return "sums"
    for method in (*_METHODS, *(_RESTORING if restore else ())):
        if not callable(getattr(client, method, None)):
            remedy = "; restore=False does without, and leaves Adam's moments changed" if method in _RESTORING else ""
            raise InputError(f"{_FUNCTION}: the client, {type(client).__name__}, has no method {method}{remedy}")
    ratios: dict[str, float] = {}
    with _restored(client) if restore else contextlib.nullcontext():
        for name, surrogate in REDUCTIONS.items():
            alone, together = (_norm(client, surrogate, batch) for batch in (_ALONE, _TOGETHER))
            ratios[name] = together / alone
            if abs(ratios[name] / _RATIO - 1.0) < _TOLERANCE:
                return name
    found = ", ".join(f'{ratio:.3g} for "{name}"' for name, ratio in ratios.items())
    raise GradientError(
        f"{_FUNCTION}: the second gradient is {found} times as long as the first; expected {_RATIO:g} for one of them. "
        "Either the server reduces in another way, or gradients had been accumulated before the call"
    )


@contextlib.contextmanager
def _restored(client: Any) -> Generator[None]:
    """Save the client's state, and load it at the end, whatever happens between."""
    expires = "ttl_seconds" in inspect.signature(client.save_state).parameters
    name = f"penalties-probe-{uuid.uuid4().hex[:8]}"
    path = result_of(client.save_state(name, **({"ttl_seconds": _KEPT} if expires else {}))).path
    try:
        yield
    finally:
        with warnings.catch_warnings():
            # The SDK would rather have a new client made from the checkpoint.
            warnings.simplefilter("ignore", FutureWarning)
            result_of(client.load_state_with_optimizer(path))


def _norm(client: Any, surrogate: Surrogate, batch: Sequence[tuple[Sequence[int], float]]) -> float:
    """The norm of the gradient of −Σ times·logprob of each second target, as the server sees it."""
    data = [Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]}) for tokens, _ in batch]
    gradients: list[Array] = [np.zeros(len(tokens) - 1, np.float32) for tokens, _ in batch]
    for gradient, (_, times) in zip(gradients, batch, strict=True):
        # Downhill: on a server that divides by the sum of weights, others are divided by almost 0.
        gradient[1] = -times
    forward = result_of(client.forward(data_for(client, forward_data(data)), FORWARD))
    logprobs = logprobs_of(forward, {index: gradient.shape for index, gradient in enumerate(gradients)})
    sent = surrogate.data(data, logprobs, gradients)
    result_of(client.forward_backward(data_for(client, sent), surrogate.loss_fn))
    stepped = result_of(client.optim_step(adam_for(client, AdamParams(learning_rate=0.0))))
    metrics = cast("Mapping[str, Any]", getattr(stepped, "metrics", None) or {})
    reported = [float(metrics[name]) for name in _NORMS if name in metrics]
    if not reported:
        there = ", ".join(metrics) or "nothing"
        raise InputError(
            f"{_FUNCTION}: the server's optim_step reported {there}; expected the norm of the gradient, as one of "
            f"{', '.join(_NORMS)}: without it, look up how the server reduces, and pass that as server"
        )
    if not (math.isfinite(reported[0]) and reported[0] > 0):
        raise GradientError(
            f"{_FUNCTION}: the server reported a gradient of norm {reported[0]:g}; expected one above 0"
        )
    return reported[0]
