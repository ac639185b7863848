"""How a server reduces is found out from the gradients that it reports, and training goes on as if nothing had been."""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.training import (
    AdamParams,
    Datum,
    LocalTrainingClient,
    ModelInput,
    OptimStepResponse,
    SaveWeightsResponse,
    forward_backward_custom,
    surrogates,
)
from penalties.training.futures import resolved
from tests.servers.sdk import LIMIT, connected
from tests.training.clients import RemoteClient, datum

pytestmark = pytest.mark.timeout(120)

DIVISORS: dict[str, Callable[[Sequence[Any]], float]] = {
    "tokens": lambda data: sum(one.model_input.length for one in data),
    "sequences": len,
}


def weighted(*lengths: int) -> list[Datum]:
    return [datum(seed, length, weights=[1.0] * length) for seed, length in enumerate(lengths)]


class Server(RemoteClient):
    """A server that sums, averages, or divides the sum by something, with an optimizer and checkpoints."""

    def __init__(self, reduces: str = "sums", norm: str = "skyrl.ai/grad_norm") -> None:
        super().__init__(averages=reduces == "averages")
        self.divisor = DIVISORS.get(reduces, lambda data: 1.0)
        self.norm = norm
        self.adam = torch.optim.AdamW(self.model.parameters())
        self.checkpoints: dict[str, Any] = {}

    def _backward(self, data: Sequence[Any], loss_fn: str) -> Any:
        before = [None if one.grad is None else one.grad.clone() for one in self.model.parameters()]
        output = super()._backward(data, loss_fn)
        for one, old in zip(self.model.parameters(), before, strict=True):
            old = torch.zeros_like(one) if old is None else old
            one.grad = old + (one.grad - old) / self.divisor(data)
        return output

    def optim_step(self, params: Any) -> "Future[Any]":
        self.calls.append(("optim_step", ""))
        (group,) = self.adam.param_groups
        group |= {"lr": params.learning_rate, "betas": (params.beta1, params.beta2), "weight_decay": 0.0}
        norm = float(torch.nn.utils.get_total_norm([one.grad for one in self.model.parameters()]))
        self.adam.step()
        self.adam.zero_grad()
        return resolved(OptimStepResponse({self.norm: norm, "other": 1.0}))

    def state(self) -> Any:
        return copy.deepcopy((self.model.state_dict(), self.adam.state_dict()["state"]))

    def save_state(self, name: str) -> "Future[Any]":
        self.checkpoints[name] = copy.deepcopy((self.model.state_dict(), self.adam.state_dict()))
        return resolved(SaveWeightsResponse(name))

    def load_state_with_optimizer(self, path: str) -> "Future[Any]":
        model, adam = self.checkpoints[path]
        self.model.load_state_dict(model)
        self.adam.load_state_dict(adam)
        return resolved(None)


@pytest.fixture(params=["sums", "averages"])
def server(request: pytest.FixtureRequest) -> Server:
    """A server whose model has been trained for a step."""
    made = Server(request.param)
    made.forward_backward(weighted(3, 4), "cross_entropy").result(60)
    made.optim_step(AdamParams(learning_rate=0.01))
    made.name = request.param
    return made


def test_it_finds_out_and_leaves_no_trace_in_the_state(server: Any) -> None:
    before = server.state()
    assert surrogates.probe(server) == server.name
    torch.testing.assert_close(server.state(), before, rtol=0, atol=0)
    assert all(gradient is None for gradient in server.gradients().values())
    (name,) = server.checkpoints
    assert name.startswith("penalties-probe-")


def test_without_restoring_only_the_moments_change(server: Any) -> None:
    model, adam = server.state()
    assert surrogates.probe(server, restore=False) == server.name
    torch.testing.assert_close(server.state()[0], model, rtol=0, atol=0)
    assert server.state()[1][0]["step"] > adam[0]["step"]
    assert not server.checkpoints


def test_two_passes_are_enough_where_it_sums() -> None:
    server = Server("sums")
    surrogates.probe(server)
    assert [name for name, _ in server.calls] == ["forward", "forward_backward", "optim_step"] * 2


@pytest.mark.parametrize("reduces", DIVISORS)
def test_other_ways_to_reduce_are_an_error(reduces: str) -> None:
    server = Server(reduces)
    before = server.state()
    with pytest.raises(pn.GradientError, match='for "sums", .* for "averages" times as long .* expected 12'):
        surrogates.probe(server)
    torch.testing.assert_close(server.state(), before, rtol=0, atol=0)


def test_gradients_from_before_are_an_error() -> None:
    server = Server("sums")
    server.forward_backward(weighted(6, 6), "cross_entropy").result(60)
    with pytest.raises(pn.GradientError, match="gradients had been accumulated before the call"):
        surrogates.probe(server)


def test_a_server_that_reports_no_norm_cannot_be_told() -> None:
    with pytest.raises(pn.InputError, match=r"optim_step reported steps, other; expected the norm of the gradient"):
        surrogates.probe(Server(norm="steps"))


def test_a_server_without_a_gradient_cannot_be_told() -> None:
    server = Server("sums")
    server.divisor = lambda data: float("inf")
    with pytest.raises(pn.GradientError, match="a gradient of norm 0; expected one above 0"):
        surrogates.probe(server)


def test_the_state_is_restored_where_a_pass_fails() -> None:
    server = Server("averages")
    passes = server.forward_backward

    def failing(data: Any, loss_fn: str) -> Any:
        if loss_fn == "importance_sampling":
            raise ConnectionError("as the test wants it")
        return passes(data, loss_fn)

    server.forward_backward = failing  # type: ignore[method-assign]
    before = server.state()
    with pytest.raises(ConnectionError):
        surrogates.probe(server)
    torch.testing.assert_close(server.state(), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (object(), "the client, object, has no method forward$"),
        (RemoteClient(), "has no method optim_step$"),
    ],
)
def test_clients_that_lack_a_method(client: Any, message: str) -> None:
    with pytest.raises(pn.InputError, match=message):
        surrogates.probe(client)


def test_a_client_that_cannot_be_restored() -> None:
    class Forgetful(Server):
        load_state_with_optimizer = None  # type: ignore[assignment]

    with pytest.raises(pn.InputError, match="no method load_state_with_optimizer; restore=False does without"):
        surrogates.probe(Forgetful())
    assert surrogates.probe(Forgetful(), restore=False) == "sums"


def test_a_client_in_this_process_sums_and_runs_nothing() -> None:
    with LocalTrainingClient("tiny") as client:
        assert surrogates.probe(client) == "sums"
        assert all(parameter.grad is None for parameter in client.parameters().values())


@pytest.mark.parametrize("averages", [False, True])
def test_through_the_sdk_training_goes_on_as_if_nothing_had_been(averages: bool) -> None:
    def loss(data: Any, logprobs: Any) -> Any:
        return sum((one.exp() - 0.5).square().sum() * (place + 1) for place, one in enumerate(logprobs)), {}

    texts = [[5, 6, 7, 8, 9], [9, 8, 7]]
    data = [Datum(ModelInput.from_ints(text[:-1]), {"target_tokens": text[1:]}) for text in texts]
    losses: dict[str, list[float]] = {}
    with connected(averages=averages) as sdk, LocalTrainingClient("tiny", rank=4, seed=0) as local:
        # The SDK takes its own options only; the probe does not mind.
        remote = pn.training.TinkerTrainingClient(sdk.client)
        found = ""
        for name, client in (("sdk", remote), ("local", local)):
            for step in range(4):
                if step in (0, 2):
                    found = surrogates.probe(client)
                passed = forward_backward_custom(client, data, loss, server=found)
                client.optim_step(AdamParams(learning_rate=3e-3)).result(LIMIT)
                losses.setdefault(name, []).append(passed.result(LIMIT).metrics["loss:sum"])
            assert found == ("averages" if averages and name == "sdk" else "sums")
    assert losses["sdk"] == pytest.approx(losses["local"], rel=1e-5)
