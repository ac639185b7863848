"""What the server adds to its gradients, against autograd through the same model in torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tinker import types

import penalties as pn
from penalties.training import forward_backward_custom, surrogates

from .batches import batch
from .reference import Loss, Reference, difference, exported, norm
from .server import PATIENCE, Server

NORM = "skyrl.ai/grad_norm"


def nonlinear(scale: float) -> Loss:
    """Neither linear in a log-probability nor a sum over data."""

    def loss(data: Any, logprobs: Any) -> Any:
        means = torch.stack([one.mean() for one in logprobs])
        return scale * (means.square().sum().sqrt() + sum(one.exp().sum() for one in logprobs)), {}

    return loss


def pairwise(data: Any, logprobs: Any) -> Any:
    """The first of each pair is to be likelier than the second."""
    margins = [one.sum() - other.sum() for one, other in zip(logprobs[::2], logprobs[1::2], strict=True)]
    return -torch.nn.functional.logsigmoid(0.1 * torch.stack(margins)).sum(), {}


@dataclass(frozen=True)
class Trained:
    """A client some steps from where it began, since an adapter begins with zeros; and the same in torch."""

    server: Server
    client: Any
    state: str
    reference: Reference
    data: list[Any]

    def gradient(self, size: float) -> tuple[float, dict[str, torch.Tensor]]:
        """What the server has added up, about as long as `size`: the length that it reports, and all of it.

        An optimizer without memory and with an eps far above the gradient moves the weights along the gradient; how
        far they moved is read from the exported adapter.
        """
        eps = 1e6 * size
        along = types.AdamParams(learning_rate=eps / size, eps=eps, beta1=0.0, beta2=0.0)
        reported = self.client.optim_step(along).result(PATIENCE).metrics[NORM]
        _, after = exported(self.server.export(self.client))
        before = self.reference.parameters()
        return reported, {name: size * (p.detach() - after[name]) for name, p in before.items()}

    def length(self) -> float:
        """How long it is; the weights stay."""
        return self.client.optim_step(types.AdamParams(learning_rate=0.0)).result(PATIENCE).metrics[NORM]


@pytest.fixture(scope="module")
def _trained(server: Server, service: Any) -> Trained:
    client = service.create_lora_training_client(base_model=str(server.model), rank=8, seed=1)
    data = batch()
    for _ in range(6):
        client.forward_backward(data, "cross_entropy").result(PATIENCE)
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result(PATIENCE)
    state = client.save_state("trained").result(PATIENCE).path
    return Trained(server, client, state, Reference(server.model, server.export(client)), data)


@pytest.fixture
def trained(_trained: Trained) -> Iterator[Trained]:
    yield _trained
    _trained.length()  # whatever a failed test has added up
    _trained.client.load_state(_trained.state).result(PATIENCE)


def test_a_probe_finds_that_it_averages_and_changes_nothing(trained: Trained) -> None:
    trained.client.load_state(trained.state).result(PATIENCE)
    expected = trained.reference.gradients(pairwise, trained.data)
    before = _next_step(trained)
    assert surrogates.probe(trained.client) == "averages"
    found = _next_step(trained)
    # The moments too: a step that they have a part in is the same.
    assert difference(found, before) < 1e-6
    forward_backward_custom(trained.client, trained.data, pairwise, server="averages").result(PATIENCE)
    assert trained.length() == pytest.approx(norm(expected), rel=1e-5)


def _next_step(trained: Trained) -> dict[str, torch.Tensor]:
    """The weights after one more step, which is then undone."""
    trained.client.forward_backward(trained.data, "cross_entropy").result(PATIENCE)
    trained.client.optim_step(types.AdamParams(learning_rate=1e-2)).result(PATIENCE)
    _, after = exported(trained.server.export(trained.client))
    trained.client.load_state(trained.state).result(PATIENCE)
    return after


def test_log_probabilities_are_those_of_torch(trained: Trained) -> None:
    found = trained.client.forward(trained.data, "cross_entropy").result(PATIENCE).loss_fn_outputs
    expected = trained.reference.logprobs(trained.data)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one["logprobs"].data, other.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("loss", [nonlinear(1.0), nonlinear(10.0), pairwise], ids=["nonlinear", "tenfold", "pairwise"])
def test_every_weight_gets_the_gradient_of_the_loss(trained: Trained, loss: Loss) -> None:
    expected = trained.reference.gradients(loss, trained.data)
    forward_backward_custom(trained.client, trained.data, loss, server="averages").result(PATIENCE)
    length, found = trained.gradient(norm(expected))
    assert length == pytest.approx(norm(expected), rel=1e-5)
    assert difference(found, expected) < 1e-5


def test_the_pairwise_loss_pulls_both_ways(trained: Trained) -> None:
    logprobs = [one.detach().requires_grad_() for one in trained.reference.logprobs(trained.data)]
    gradients = torch.autograd.grad(pairwise(trained.data, logprobs)[0], logprobs)
    assert [int(one.sign().unique()) for one in gradients] == [-1, 1, -1, 1]


def test_terms_and_references_are_in_the_gradient(trained: Trained) -> None:
    teacher = [np.linspace(-3, -1, len(one), dtype=np.float32) for one in trained.reference.logprobs(trained.data)]

    def far(logprobs: Any, teacher: Any) -> Any:
        return sum((one - torch.as_tensor(other)).square().mean() for one, other in zip(logprobs, teacher, strict=True))

    def whole(data: Any, logprobs: Any) -> Any:
        spread = torch.cat(list(logprobs)).square().sum()
        return pairwise(data, logprobs)[0] + 0.5 * far(logprobs, teacher) + 0.01 * spread, {}

    expected = trained.reference.gradients(whole, trained.data)
    result = forward_backward_custom(
        trained.client,
        trained.data,
        pairwise,
        regularizers=[
            pn.Term(far, weight=0.5),
            pn.Term(pn.l2, name="spread", weight=0.01, inputs="flat_logprobs"),
        ],
        references={"teacher": teacher},
        server="averages",
    ).result(PATIENCE)
    assert set(result.custom_loss.terms) == {"far", "spread"}
    length, found = trained.gradient(norm(expected))
    assert length == pytest.approx(norm(expected), rel=1e-5)
    assert difference(found, expected) < 1e-5


def test_requests_that_are_divided_add_up_to_the_same(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinker.lib.public_interfaces.training_client.MAX_CHUNK_LEN", 2)
    expected = trained.reference.gradients(pairwise, trained.data)
    forward_backward_custom(trained.client, trained.data, pairwise, server="averages").result(PATIENCE)
    assert trained.length() == pytest.approx(norm(expected), rel=1e-5)


def test_calls_before_one_step_are_averaged_by_this_server(trained: Trained) -> None:
    expected = trained.reference.gradients(pairwise, trained.data)
    for _ in range(2):
        forward_backward_custom(trained.client, trained.data, pairwise, server="averages").result(PATIENCE)
    assert trained.length() == pytest.approx(norm(expected), rel=1e-5)  # of Tinker's, twice that


def test_the_sdk_alone_is_blind_to_scale_here(trained: Trained) -> None:
    lengths: list[float] = []
    for scale in (1.0, 10.0):
        trained.client.forward_backward_custom(trained.data, nonlinear(scale)).result(PATIENCE)
        lengths.append(trained.length())
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-5)
    for scale, length in zip((1.0, 10.0), lengths, strict=True):
        expected = norm(trained.reference.gradients(nonlinear(scale), trained.data))
        assert length != pytest.approx(expected, rel=0.1)


def test_the_surrogate_of_another_server_is_wrong_here(trained: Trained) -> None:
    lengths: list[float] = []
    for scale in (1.0, 10.0):
        forward_backward_custom(trained.client, trained.data, nonlinear(scale), server="sums").result(PATIENCE)
        lengths.append(trained.length())
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-5)
    # Where weights sum to less than nothing it divides by 1e-9.
    forward_backward_custom(trained.client, trained.data, pairwise, server="sums").result(PATIENCE)
    assert trained.length() > 1e6 * norm(trained.reference.gradients(pairwise, trained.data))
