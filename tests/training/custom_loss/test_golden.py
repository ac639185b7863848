"""Numbers on record, through a client that returns ten known log-probabilities."""

import math
from concurrent.futures import Future
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.training import Datum, ForwardBackwardOutput, ModelInput, TensorData, forward_backward_custom

LOGPROBS = [-0.5, -1.2, -0.8, -2.1, -0.3, -1.5, -0.9, -1.8, -0.6, -1.1]
DATA = [Datum(ModelInput.from_ints(range(10)), {"target_tokens": list(range(1, 11))})]


class Recorded:
    """A client whose model always says the same."""

    def __init__(self) -> None:
        self.weights: list[float] = []

    def forward(self, data: Any, loss_fn: str) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(ForwardBackwardOutput("Recorded", [{"logprobs": TensorData(LOGPROBS)}]))
        return future

    def forward_backward(self, data: Any, loss_fn: str) -> "Future[Any]":
        self.weights = data[0].loss_fn_inputs["weights"].tolist()
        return self.forward(data, loss_fn)


def nll(data: Any, logprobs: Any) -> Any:
    mean = -torch.cat(list(logprobs)).mean()
    return mean, {"perplexity": mean.exp().item()}


async def mean_size(logprobs: Any) -> Any:
    return torch.cat(logprobs).abs().mean()


def run(loss: Any, **arguments: Any) -> Any:
    return forward_backward_custom(Recorded(), DATA, loss, **arguments).result(60)


def test_perplexity_of_the_base() -> None:
    out = run(nll)
    assert out.metrics["base_loss"] == pytest.approx(1.08, rel=1e-6)
    assert out.metrics["perplexity"] == pytest.approx(2.9447, abs=5e-5)


@pytest.mark.parametrize(("penalty", "value", "norm"), [("l1", 10.8, math.sqrt(10)), ("l2", 14.7, 7.6681)])
def test_norms_of_gradients(penalty: str, value: float, norm: float) -> None:
    out = run(nll, regularizers=[penalty], track_grad_norms=True).custom_loss
    assert out[penalty].value == pytest.approx(value, rel=1e-6)
    assert out[penalty].grad_norm == pytest.approx(norm, abs=5e-5)


def test_an_async_term_of_weight_two_hundredths() -> None:
    out = run(nll, regularizers=[pn.Term(mean_size, weight=0.02)])
    assert out.metrics["mean_size"] == pytest.approx(1.08, rel=1e-6)
    assert out.metrics["total"] == pytest.approx(1.1016, rel=1e-6)


def test_l1_alone() -> None:
    client = Recorded()
    future = forward_backward_custom(client, DATA, nll, regularizers=[pn.Term("l1", weight=0.01)])
    assert future.result(60).metrics["total"] == pytest.approx(1.188, rel=1e-6)
    # What is sent is minus the gradient: 1/10 from the mean, and 1/100 from the sum of sizes.
    assert client.weights == pytest.approx([0.11] * 10, rel=1e-6)


def constant(value: float) -> Any:
    return lambda flat_logprobs: (flat_logprobs * 0).sum() + value


@pytest.mark.parametrize(
    ("terms", "regularizer_total", "total"),
    [
        ({"sparsity": (22.4, 0.01), "entropy": (1.5, 0.001)}, 0.2255, 2.7255),
        ({"topology": (1.23, 0.1), "sparsity": (22.4, 0.01)}, 0.347, 2.847),
    ],
)
def test_contributions_add_up(terms: dict[str, tuple[float, float]], regularizer_total: float, total: float) -> None:
    regularizers = [pn.Term(constant(value), weight, name) for name, (value, weight) in terms.items()]
    nested = run(lambda data, logprobs: logprobs[0].sum() * 0 + 2.5, regularizers=regularizers).custom_loss.to_dict()
    assert nested["base_loss"]["value"] == 2.5
    assert nested["regularizer_total"] == pytest.approx(regularizer_total, rel=1e-6)
    assert nested["loss_total"] == pytest.approx(total, rel=1e-6)
    for name, (value, weight) in terms.items():
        assert nested["regularizers"][name]["contribution"] == pytest.approx(value * weight, rel=1e-6)
