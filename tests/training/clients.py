"""Clients that need no library but PyTorch: a model of two matrices, and servers that sum or average."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penalties.training import Datum, ForwardBackwardOutput, ModelInput, TensorData
from penalties.training.reading import numpy_of

VOCABULARY = 11


def datum(seed: int, length: int, candidates: int | None = None, **inputs: Any) -> Datum:
    generator = np.random.default_rng(seed)
    shape = (length,) if candidates is None else (length, candidates)
    return Datum(
        ModelInput.from_ints(generator.integers(0, VOCABULARY, length).tolist()),
        {"target_tokens": generator.integers(0, VOCABULARY, shape), **inputs},
    )


def batch(*lengths: int, candidates: int | None = None) -> list[Datum]:
    return [datum(seed, length, candidates) for seed, length in enumerate(lengths)]


class Model(torch.nn.Module):
    """Something that is not linear, whose every token is predicted from the one before."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.nn.Parameter(torch.randn(VOCABULARY, 5, generator=generator))
        self.head = torch.nn.Parameter(torch.randn(5, VOCABULARY, generator=generator))

    def logprobs(self, one: Any) -> Tensor:
        tokens = torch.tensor(one.model_input.to_ints())
        found = (self.embedding[tokens].tanh() @ self.head).log_softmax(-1)
        targets = torch.as_tensor(numpy_of(one.loss_fn_inputs["target_tokens"]))
        picked = found.gather(-1, targets if targets.ndim == 2 else targets[:, None])
        return picked if targets.ndim == 2 else picked[:, 0]


class RemoteClient:
    """Like a server's client: log-probabilities out, weights in, and a thread of its own that answers."""

    model_id = "fake"

    def __init__(self, averages: bool = False) -> None:
        self.model = Model()
        self.averages = averages
        self.calls: list[tuple[str, str]] = []
        self.sent: list[Any] = []
        self.thread: threading.Thread | None = None
        self.delay: Callable[[], None] = lambda: None

    def forward(self, data: Sequence[Any], loss_fn: str, loss_fn_config: Any = None) -> "Future[Any]":
        self.calls.append(("forward", loss_fn))
        return self._answer(lambda: self._output(data, [self.model.logprobs(one).detach() for one in data], 0.0))

    def forward_backward(self, data: Sequence[Any], loss_fn: str, loss_fn_config: Any = None) -> "Future[Any]":
        self.calls.append(("forward_backward", loss_fn))
        self.sent.append(list(data))
        return self._answer(lambda: self._backward(data, loss_fn))

    def _backward(self, data: Sequence[Any], loss_fn: str) -> ForwardBackwardOutput:
        logprobs = [self.model.logprobs(one) for one in data]
        total = torch.zeros(())
        for one, found in zip(data, logprobs, strict=True):
            given = {name: torch.as_tensor(numpy_of(value)) for name, value in one.loss_fn_inputs.items()}
            if loss_fn == "cross_entropy":
                weights = given["weights"]
                loss = -(found * weights)
            else:
                assert loss_fn == "importance_sampling"
                weights = torch.ones_like(found)
                loss = -((found - given["logprobs"]).exp() * given["advantages"])
            total = total + (loss.sum() / weights.sum().clamp(min=1e-9) / len(data) if self.averages else loss.sum())
        total.backward()
        return self._output(data, [found.detach() for found in logprobs], total.item())

    def _output(self, data: Sequence[Any], logprobs: list[Tensor], loss: float) -> ForwardBackwardOutput:
        outputs = [{"logprobs": TensorData.from_torch(found)} for found in logprobs]
        return ForwardBackwardOutput("Fake", outputs, {"loss:sum": loss, "tokens:mean": float(len(data))})

    def _answer(self, make: Callable[[], Any]) -> "Future[Any]":
        promised: Future[Any] = Future()

        def work() -> None:
            try:
                self.delay()
                promised.set_result(make())
            except BaseException as error:
                promised.set_exception(error)

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()
        return promised

    def gradients(self) -> dict[str, Tensor | None]:
        return {name: parameter.grad for name, parameter in self.model.named_parameters()}


def plain_gradients(
    data: Sequence[Any], loss: Callable[[list[Tensor]], Tensor], model: Model | None = None
) -> dict[str, Tensor]:
    """The gradients by autograd through the whole model."""
    model = Model() if model is None else model
    loss([model.logprobs(one) for one in data]).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
