from typing import Any

import numpy as np
import pytest
import torch

from penalties.errors import GradientError, InputError, OptionError, ShapeError
from penalties.training.local import LocalTrainingClient
from penalties.training.types import AdamParams
from tests.training.local.cases import (
    WAIT,
    assert_close,
    assert_same,
    clear,
    data,
    gradients,
    logprobs,
    normal,
    plain_gradients,
    plain_logprobs,
    tiny,
    weights,
)


@pytest.fixture(scope="module")
def shared() -> Any:
    with tiny() as made:
        yield made


@pytest.fixture
def client(shared: LocalTrainingClient) -> LocalTrainingClient:
    """For tests that change no parameters."""
    clear(shared)
    return shared


def plain_states(client: LocalTrainingClient, datum: Any) -> Any:
    tokens = torch.tensor([datum.model_input.to_ints()])
    return client.model(input_ids=tokens, output_hidden_states=True)


def test_a_graph_holds_what_was_requested_without_padding(client: LocalTrainingClient) -> None:
    batch = data(7, 3, 5)
    graph = client.forward_with_graph(batch, reads=("logits", "hidden.0", "hidden.1", "hidden.2")).result(WAIT)
    plain = [plain_states(client, one) for one in batch]
    assert set(graph.inputs) == {"params", "logits", "hidden.0", "hidden.1", "hidden.2"}
    assert_close(graph.logprobs, [plain_logprobs(client, one) for one in batch])
    assert_close(graph.inputs["logits"], [one.logits[0] for one in plain])
    for layer in range(3):
        assert_close(graph.inputs[f"hidden.{layer}"], [one.hidden_states[layer][0] for one in plain])
    assert graph.inputs["params"].keys() == client.parameters().keys()
    assert all(one is client.parameters()[name] for name, one in graph.inputs["params"].items())
    assert_close(logprobs(graph.output), graph.logprobs)
    assert all(one.requires_grad and one.dtype is torch.float32 for one in graph.logprobs)
    assert graph.inputs["hidden.1"][0].requires_grad


def test_a_graph_holds_only_what_was_requested(client: LocalTrainingClient) -> None:
    graph = client.forward_with_graph(data(3)).result(WAIT)
    assert set(graph.inputs) == {"params"}
    assert client.forward_with_graph(data(3), reads=("params",)).result(WAIT).inputs.keys() == {"params"}


@pytest.mark.parametrize("width", [None, 3])
def test_a_loss_of_log_probabilities_is_propagated(client: LocalTrainingClient, width: int | None) -> None:
    batch = data(6, 2, 9, width=width)

    def loss_of(found: Any) -> Any:
        return torch.cat([one.flatten() for one in found]).var() + (found[0].mean() - found[2].mean()).tanh()

    graph = client.forward_with_graph(batch).result(WAIT)
    leaves = [one.detach().requires_grad_() for one in graph.logprobs]
    slopes = torch.autograd.grad(loss_of(leaves), leaves, allow_unused=True)
    output = graph.backward({"logprobs": slopes})
    assert_close(logprobs(output), leaves)
    assert_close(gradients(client), plain_gradients(client, loss_of([plain_logprobs(client, one) for one in batch])))


def test_gradients_at_all_inputs_are_propagated_in_one_pass(client: LocalTrainingClient) -> None:
    batch = [*data(6, 2), *data(4, width=2, seed=3)]
    reads = ("logits", "hidden.0", "hidden.1", "hidden.2")
    graph = client.forward_with_graph(batch, reads=reads).result(WAIT)
    rng = torch.Generator().manual_seed(2)

    def drawn(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=rng)

    slopes: dict[str, Any] = {name: [drawn(one) for one in graph.inputs[name]] for name in reads}
    slopes["logprobs"] = [drawn(one) for one in graph.logprobs]
    first = next(iter(client.parameters()))
    slopes["params"] = {name: None if name == first else drawn(one) for name, one in client.parameters().items()}

    loss: Any = 0.0
    for place, one in enumerate(batch):
        plain = plain_states(client, one)
        loss = loss + (plain_logprobs(client, one) * slopes["logprobs"][place]).sum()
        loss = loss + (plain.logits[0] * slopes["logits"][place]).sum()
        for layer in range(3):
            loss = loss + (plain.hidden_states[layer][0] * slopes[f"hidden.{layer}"][place]).sum()
    for name, slope in slopes["params"].items():
        if slope is not None:
            loss = loss + (client.parameters()[name] * slope).sum()
    expected = plain_gradients(client, loss)

    graph.backward(slopes)
    assert_close(gradients(client), expected)


@pytest.mark.parametrize("width", [None, 3])
def test_packed_tensors_are_the_lists_in_one(client: LocalTrainingClient, width: int | None) -> None:
    batch = data(4, 6, 1, width=width)
    graph = client.forward_with_graph(batch, reads=("logits", "hidden.1")).result(WAIT)
    packed = graph.packed
    assert set(packed) == {"logits", "hidden.1", "logprobs"}
    for name, whole in packed.items():
        assert torch.equal(whole, torch.cat(graph.logprobs if name == "logprobs" else graph.inputs[name]))
    slopes = {name: torch.full_like(one, 0.5) for name, one in packed.items()}
    graph.backward(slopes)
    assert graph.packed == {}
    found = gradients(client)
    clear(client)
    graph = client.forward_with_graph(batch, reads=("logits", "hidden.1")).result(WAIT)
    graph.backward({name: slope.split([4, 6, 1]) for name, slope in slopes.items()})
    assert_close(found, gradients(client))


def test_log_probabilities_of_several_widths_are_not_packed(client: LocalTrainingClient) -> None:
    graph = client.forward_with_graph([*data(3), *data(2, width=2)], reads=("hidden.1",)).result(WAIT)
    assert set(graph.packed) == {"hidden.1"}
    with pytest.raises(ShapeError, match="the data differ in targets per position"):
        graph.backward({"logprobs": torch.ones(7)})


def test_a_packed_gradient_comes_once_too(client: LocalTrainingClient) -> None:
    graph = client.forward_with_graph(data(3)).result(WAIT)
    with pytest.raises(ShapeError, match=r"the gradient of logprobs has shape \(4,\); expected \(3,\)"):
        graph.backward({"logprobs": torch.ones(4)})
    graph.backward({"logprobs": torch.ones(3)})
    with pytest.raises(GradientError, match="freed the graph"):
        graph.backward({"logprobs": torch.ones(3)})


def test_none_is_zero(client: LocalTrainingClient) -> None:
    batch = data(4, 6)
    graph = client.forward_with_graph(batch, reads=("hidden.1",)).result(WAIT)
    graph.backward({"logprobs": [None, torch.ones(6)], "hidden.1": [None, None], "params": None})
    assert_close(gradients(client), plain_gradients(client, plain_logprobs(client, batch[1]).sum()))


@pytest.mark.parametrize("nothing", [{}, {"logprobs": None}, {"logprobs": [None, None], "params": {}}])
def test_no_gradient_at_all_is_one_of_zeros(client: LocalTrainingClient, nothing: Any) -> None:
    client.forward_with_graph(data(4, 6)).result(WAIT).backward(nothing)
    assert len(gradients(client)) == len(client.parameters())
    assert not any(one.any() for one in gradients(client).values())


def test_gradients_add_to_those_that_are_there(client: LocalTrainingClient) -> None:
    batch = data(5, weights=normal)
    client.forward_backward(batch, "cross_entropy").result(WAIT)
    once = gradients(client)
    slope = -batch[0].loss_fn_inputs["weights"].to_numpy()
    client.forward_with_graph(batch).result(WAIT).backward({"logprobs": [slope]})
    assert_close(gradients(client), {name: 2 * one for name, one in once.items()})


def test_a_gradient_that_was_passed_in_is_not_modified(client: LocalTrainingClient) -> None:
    name, one = next(iter(client.parameters().items()))
    given = torch.ones_like(one)
    graph = client.forward_with_graph(data(3)).result(WAIT)
    graph.backward({"params": {name: given}})
    client.forward_backward(data(3), "cross_entropy").result(WAIT)
    assert torch.equal(given, torch.ones_like(one))


def test_later_requests_come_after_a_submitted_backward() -> None:
    batch = data(5)
    with tiny() as client, tiny() as other:
        graph = client.forward_with_graph(batch).result(WAIT)
        done = graph.submit({"logprobs": [-torch.ones(5)]})
        step = client.optim_step(AdamParams(1e-2))
        assert_close(logprobs(done.result(WAIT)), logprobs(graph.output))
        other.forward_backward(batch, "cross_entropy").result(WAIT)
        expected = other.optim_step(AdamParams(1e-2)).result(WAIT)
        assert step.result(WAIT) == expected
        assert_same(weights(client), weights(other))


def test_bfloat16_states_take_float32_gradients() -> None:
    with tiny(dtype=torch.bfloat16) as client:
        graph = client.forward_with_graph(data(4), reads=("logits", "hidden.1")).result(WAIT)
        assert graph.logprobs[0].dtype is torch.float32
        assert graph.inputs["logits"][0].dtype is torch.bfloat16
        graph.backward({"logprobs": [torch.ones(4)], "hidden.1": [np.ones((4, 64), np.float32)]})
        assert any(one.any() for one in gradients(client).values())


# What is wrong.


@pytest.mark.parametrize("name", ["logit", "hidden.3", "hidden.x", "hidden", "hidden.-1", "logits.1", 3])
def test_unknown_reads_raise(client: LocalTrainingClient, name: Any) -> None:
    with pytest.raises(OptionError, match='expected "params", "logits", or "hidden.<layer>" with a layer from 0 to 2'):
        client.forward_with_graph(data(3), reads=(name,))


def test_one_name_is_as_good_as_a_list(client: LocalTrainingClient) -> None:
    graph = client.forward_with_graph(data(3), reads="logits").result(WAIT)
    assert "logits" in graph.inputs
    with pytest.raises(InputError, match="got int as the gradient of logits; expected a list, one per datum"):
        graph.backward({"logits": 3})


def test_an_error_has_the_index_of_the_datum(client: LocalTrainingClient) -> None:
    with pytest.raises(InputError, match="at least one datum"):
        client.forward_with_graph([])
    with pytest.raises(InputError, match="datum 1: "):
        client.forward_initial([*data(3), None])


def test_a_backward_can_be_done_once(client: LocalTrainingClient) -> None:
    graph = client.forward_with_graph(data(3)).result(WAIT)
    graph.backward({"logprobs": [torch.ones(3)]})
    before = gradients(client)
    with pytest.raises(GradientError, match="freed the graph"):
        graph.backward({"logprobs": [torch.ones(3)]})
    assert_same(gradients(client), before)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"logprob": [None]}, InputError, 'a gradient of "logprob"; this graph has "params", "hidden.1", "logprobs"'),
        ({"logits": [None]}, InputError, 'a gradient of "logits"'),
        ({"logprobs": [torch.ones(3)]}, ShapeError, "got 1 gradients of logprobs; expected 2, one per datum"),
        (
            {"logprobs": [None, torch.ones(4)]},
            ShapeError,
            r"datum 1: the gradient of logprobs has shape \(4,\); .*\(5,",
        ),
        ({"hidden.1": [torch.ones(3, 2), None]}, ShapeError, r"datum 0: .* hidden.1 has shape \(3, 2\); .* \(3, 64\)"),
        ({"params": {"lora": torch.ones(1)}}, InputError, '"lora", which is not a trainable parameter'),
    ],
)
def test_wrong_gradients_raise_and_keep_the_graph(
    client: LocalTrainingClient, given: Any, error: Any, message: str
) -> None:
    graph = client.forward_with_graph(data(3, 5), reads=("hidden.1",)).result(WAIT)
    with pytest.raises(error, match=message):
        graph.backward(given)
    assert gradients(client) == {}
    graph.backward({"logprobs": [torch.ones(3), torch.ones(5)]})


def test_a_parameter_takes_a_gradient_of_its_shape(client: LocalTrainingClient) -> None:
    name = next(iter(client.parameters()))
    with pytest.raises(ShapeError, match=r"the gradient of .*lora_A.* has shape \(2,\); expected \(8, 64\)"):
        client.forward_with_graph(data(3)).result(WAIT).backward({"params": {name: torch.ones(2)}})


def test_a_graph_is_of_one_state_of_the_parameters() -> None:
    with tiny() as client:
        graph = client.forward_with_graph(data(3)).result(WAIT)
        client.forward_backward(data(3), "cross_entropy").result(WAIT)
        client.optim_step(AdamParams(1e-3)).result(WAIT)
        with pytest.raises(GradientError, match="the parameters changed after the forward"):
            graph.backward({"logprobs": [torch.ones(3)]})
        assert gradients(client) == {}
