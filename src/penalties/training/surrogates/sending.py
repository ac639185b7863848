"""The requests that carry a gradient to a server, one kind for each way in which servers reduce."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import numpy as np

from ...errors import NonFiniteError, OptionError
from ..reading import inputs_of, like, targets_of, with_inputs

__all__ = ["FORWARD", "REDUCTIONS", "Surrogate", "forward_data", "surrogate_of"]

FORWARD: Final = "cross_entropy"
"""The loss of a forward request: every server has it, and returns the log-probabilities with it."""


Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Surrogate:
    """How a gradient is sent to servers that reduce in one way."""

    loss_fn: str
    """The server's loss that is used."""
    rows: bool
    """Whether it takes several targets per position."""
    inputs: Callable[[Array, Array, int], Mapping[str, Array]]
    """The inputs of that loss, from the log-probabilities of a datum, the gradient there, and the number of data."""

    def data(self, data: Sequence[Any], logprobs: Sequence[Array], gradients: Sequence[Array]) -> list[Any]:
        """The data to send."""
        made: list[Any] = []
        for index, (datum, before, gradient) in enumerate(zip(data, logprobs, gradients, strict=True)):
            targets = inputs_of(index, datum)["target_tokens"]
            inputs = self.inputs(before, gradient, len(data))
            if not all(np.isfinite(array).all() for array in inputs.values()):
                message = f"datum {index}: the gradient of the loss is too large for float32"
                raise NonFiniteError("inf", message, phase="gradient")
            arrays = {name: like(targets, array) for name, array in inputs.items()}
            made.append(with_inputs(datum, {"target_tokens": targets, **arrays}))
        return made


def forward_data(data: Sequence[Any]) -> list[Any]:
    """The data of a forward: only targets and weights, because servers reject unknown inputs."""
    made: list[Any] = []
    for index, datum in enumerate(data):
        given = inputs_of(index, datum)
        targets = given["target_tokens"]
        weights = given.get("weights")
        if weights is None:
            weights = like(targets, np.zeros(targets_of(index, datum).shape, np.float32))
        made.append(with_inputs(datum, {"target_tokens": targets, "weights": weights}))
    return made


def _summed(before: Array, gradient: Array, count: int) -> Mapping[str, Array]:
    """Servers that compute Σ −logprob·weight: the weight is minus the gradient."""
    return {"weights": -gradient}


def _averaged(before: Array, gradient: Array, count: int) -> Mapping[str, Array]:
    """Servers that average over the tokens of a sequence, and over the sequences of a step.

    With cross_entropy the weights cancel out on such a server. Importance sampling has the gradient −advantage if the
    old log-probabilities are the current ones, and is divided by numbers that are known here: the length of each
    sequence and the number of sequences. Several calls before one step are averaged by their numbers of sequences.
    """
    with np.errstate(over="ignore"):
        advantages = (-len(gradient) * count * gradient.astype(np.float64)).astype(np.float32)
    return {"logprobs": before, "advantages": advantages}


REDUCTIONS: Final[Mapping[str, Surrogate]] = {
    "sums": Surrogate("cross_entropy", rows=True, inputs=_summed),
    "averages": Surrogate("importance_sampling", rows=False, inputs=_averaged),
}
"""The ways in which servers reduce, by name."""

_SERVICE: Final = "tinker"
"""The service itself, which sums."""

_SKYRL: Final = "skyrl"
"""A server whose backends differ: its name does not say how it reduces."""


def surrogate_of(server: str) -> Surrogate:
    """The exact surrogate for a server that reduces in this way."""
    if server == _SKYRL:
        warnings.warn(
            'server="skyrl" stands for "averages", which only SkyRL\'s JAX backend does; its torch backends, fsdp and '
            'megatron, sum: pass server="averages" or server="sums", or what surrogates.probe(client) returns',
            FutureWarning,
            stacklevel=4,  # whoever called forward_backward_custom
        )
        server = "averages"
    elif server == _SERVICE:
        server = "sums"
    if not isinstance(cast("object", server), str) or server not in REDUCTIONS:
        known = ", ".join(f'"{name}"' for name in REDUCTIONS)
        raise OptionError("forward_backward_custom", "server", server, f'{known} or "{_SERVICE}", which sums')
    return REDUCTIONS[server]
