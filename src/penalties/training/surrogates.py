"""What is sent to a server so that its own loss has the gradient of ours.

A server computes a loss L of the log-probabilities with weights that the client chooses. Where ∂L/∂logprob is made
equal to ∂C/∂logprob of the client's loss C, the chain rule does the rest: the model gets the gradient of C.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from ..errors import InputError, OptionError
from .reading import inputs_of, like, with_inputs

__all__ = ["FORWARD", "SERVERS", "Surrogate", "forward_data", "surrogate_of"]

FORWARD: Final = "cross_entropy"
"""The loss that a forward is asked for: every server has it, and gives the log-probabilities with it."""


class Surrogate(Protocol):
    """How one kind of server is given a gradient."""

    loss_fn: str
    """The loss of the server that is used."""

    def data(
        self, data: Sequence[Any], logprobs: Sequence[np.ndarray[Any, Any]], gradients: Sequence[np.ndarray[Any, Any]]
    ) -> list[Any]:
        """The data to send."""
        ...


def forward_data(data: Sequence[Any]) -> list[Any]:
    """The data of a forward: targets and weights alone, since servers refuse what they do not know."""
    made: list[Any] = []
    for place, datum in enumerate(data):
        given = inputs_of(place, datum)
        targets = given["target_tokens"]
        weights = given.get("weights")
        if weights is None:
            shape = tuple(getattr(targets, "shape", None) or (len(targets.data),))
            weights = like(targets, np.zeros(shape, np.float32))
        made.append(with_inputs(datum, {"target_tokens": targets, "weights": weights}))
    return made


class _Summed:
    """Servers that compute Σ −logprob·weight: the weight is minus the gradient."""

    loss_fn = "cross_entropy"

    def data(
        self, data: Sequence[Any], logprobs: Sequence[np.ndarray[Any, Any]], gradients: Sequence[np.ndarray[Any, Any]]
    ) -> list[Any]:
        made: list[Any] = []
        for place, (datum, gradient) in enumerate(zip(data, gradients, strict=True)):
            targets = inputs_of(place, datum)["target_tokens"]
            made.append(with_inputs(datum, {"target_tokens": targets, "weights": like(targets, -gradient)}))
        return made


class _Averaged:
    """Servers that average over the tokens of a sequence, and over the sequences of a step, as SkyRL does.

    Under cross_entropy the weights divide themselves out there. Importance sampling has the gradient −advantage where
    the old log-probabilities are the present ones, and is divided by numbers that are known here: the length of each
    sequence, and how many there are. Those of several calls before one step are averaged, each by how many it has.
    """

    loss_fn = "importance_sampling"

    def data(
        self, data: Sequence[Any], logprobs: Sequence[np.ndarray[Any, Any]], gradients: Sequence[np.ndarray[Any, Any]]
    ) -> list[Any]:
        made: list[Any] = []
        for place, (datum, before, gradient) in enumerate(zip(data, logprobs, gradients, strict=True)):
            if gradient.ndim != 1:
                raise InputError(
                    f"datum {place}: has {gradient.shape[1]} targets at each place; a server that averages is sent "
                    "its gradient by importance sampling, which takes one"
                )
            targets = inputs_of(place, datum)["target_tokens"]
            advantages = (-len(gradient) * len(data) * gradient).astype(np.float32)
            inputs: Mapping[str, Any] = {
                "target_tokens": targets,
                "logprobs": like(targets, before),
                "advantages": like(targets, advantages),
            }
            made.append(with_inputs(datum, inputs))
        return made


SERVERS: Final[Mapping[str, Surrogate]] = {"tinker": _Summed(), "skyrl": _Averaged()}
"""The kinds of servers, by name."""


def surrogate_of(server: str) -> Surrogate:
    """The surrogate that is exact for this kind of server."""
    if server not in SERVERS:
        raise OptionError("forward_backward_custom", "server", server, " or ".join(f'"{name}"' for name in SERVERS))
    return SERVERS[server]
