"""A custom loss on the client's side: 256 sequences of 512 tokens, and five regularizers with and without norms."""

from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

import penalties as pn
from penalties.training import Datum, ForwardBackwardOutput, ModelInput, TensorData, forward_backward_custom

from .harness import Row, compare

_SEQUENCES, _TOKENS = 256, 512

REGULARIZERS = [
    pn.Term("kl_estimate", 0.1, inputs=("logprobs", "teacher")),
    pn.Term("entropy_estimate", 0.01, inputs="logprobs"),
    pn.Term("l2", 1e-3, inputs="logprobs"),
    pn.Term("smooth_l1", 1e-3, inputs="logprobs"),
    pn.Term("consistency", 0.1, inputs=("logprobs", "teacher")),
]


class Answered:
    """A client whose server has answered already: what remains is our own work."""

    def __init__(self, logprobs: list[Any]) -> None:
        self.output = ForwardBackwardOutput("Answered", [{"logprobs": TensorData(one)} for one in logprobs])

    def forward(self, data: Any, loss_fn: str) -> "Future[Any]":
        return self._done()

    def forward_backward(self, data: Any, loss_fn: str) -> "Future[Any]":
        return self._done()

    def _done(self) -> "Future[Any]":
        found: Future[Any] = Future()
        found.set_result(self.output)
        return found


def summed(data: Any, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    return -torch.cat(logprobs).sum(), {}


def run(scale: float) -> list[Row]:
    generator = np.random.default_rng(0)
    shape = (_SEQUENCES, _TOKENS)
    logprobs = list(-generator.exponential(2.0, shape).astype(np.float32))
    teacher = list(-generator.exponential(2.0, shape).astype(np.float32))
    tokens = generator.integers(0, 1000, shape)
    data = [Datum(ModelInput.from_ints(row.tolist()), {"target_tokens": row}) for row in tokens]
    client = Answered(logprobs)

    def step(track: bool) -> Any:
        return forward_backward_custom(
            client, data, summed, regularizers=REGULARIZERS, references={"teacher": teacher}, track_grad_norms=track
        ).result()

    with_norms = step(True).metrics
    assert {"kl_estimate_grad_norm", "total_grad_norm"} <= set(with_norms)
    return [
        compare(
            "five regularizers, with norms",
            lambda: step(False),
            lambda: step(True),
            seconds=10.0 * scale,
            unit="ms",
            most=50.0,
            most_ratio=1.3,
        )
    ]
