"""Gradients of each term measured at the parameters of a model in this process."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.training import (
    AdamParams,
    Datum,
    LocalTrainingClient,
    ModelInput,
    forward_backward_custom,
    forward_backward_custom_async,
)

from .clients import RemoteClient, batch

DATA = [
    Datum(ModelInput.from_ints([1, 2, 3]), {"target_tokens": [2, 3, 4]}),
    Datum(ModelInput.from_ints([5, 6]), {"target_tokens": [7, 8]}),
]


def deep(hidden: Any) -> Any:
    return sum((one**2).mean() for one in hidden)


TERMS = [
    pn.Term(pn.l1, name="short", weight=0.3, inputs="flat_logprobs"),
    pn.Term(pn.entropy, weight=0.2, inputs="flat_logits", options={"logits": True}),
    pn.Term(deep, weight=0.5, inputs="hidden.1"),
    pn.Term(pn.l2, name="size", weight=0.1, inputs="params"),
    pn.Term(pn.l2, name="both", weight=0.1, inputs="flat_logprobs", runs="thread"),
    pn.Term(lambda data: torch.tensor(float(len(data))), name="count", inputs="data"),
]


@pytest.fixture
def client() -> Iterator[LocalTrainingClient]:
    with LocalTrainingClient("tiny", seed=3) as client:
        # The adapter's second factor is 0 at first, and so is half of every gradient.
        forward_backward_custom(client, DATA, "cross_entropy").result(60)
        client.optim_step(AdamParams(learning_rate=0.1)).result(60)
        yield client


def gradient(client: LocalTrainingClient, loss: Any, terms: Any = ()) -> np.ndarray[Any, Any]:
    """What one term alone adds to the gradients of the parameters."""
    forward_backward_custom(client, DATA, loss, regularizers=terms).result(60)
    parts = [one.grad.flatten().clone() for one in client._model.parameters.values()]
    for one in client._model.parameters.values():
        one.grad = None
    return torch.cat(parts).double().numpy()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_norms_and_cosines_are_those_of_what_each_term_adds(client: LocalTrainingClient, asynchronous: bool) -> None:
    alone = [gradient(client, "cross_entropy")]
    alone += [gradient(client, None, [term.with_weight(1.0)]) for term in TERMS[:-1]]
    given: dict[str, Any] = {"regularizers": TERMS, "track_grad_norms": "parameters", "cosines": True}
    if asynchronous:
        call = forward_backward_custom_async(client, DATA, "cross_entropy", **given)
        out = asyncio.run(call).result(60).custom_loss
    else:
        out = forward_backward_custom(client, DATA, "cross_entropy", **given).result(60).custom_loss
    expected = [np.linalg.norm(one) for one in alone]
    assert [float(term.grad_norm) for term in list(out.all)[:-1]] == pytest.approx(expected, rel=1e-5)
    assert out["count"].grad_norm is None
    assert "does not depend on the parameters" in out["count"].grad_error
    cosines = np.array(out.cosines)[:-1, :-1]
    units = np.stack([one / norm for one, norm in zip(alone, expected, strict=True)])
    np.testing.assert_allclose(cosines, units @ units.T, atol=1e-5)
    # The optimizer sees the same.
    stepped = client.optim_step(AdamParams(learning_rate=1e-3)).result(60)
    assert float(out.total_grad_norm) == pytest.approx(stepped.metrics["unclipped_grad_l2:mean"], rel=1e-5)


def test_measuring_changes_nothing_that_is_trained() -> None:
    """But for rounding: to measure a term by itself its logits are needed as a whole, not a block at a time."""
    trained: list[list[Any]] = []
    for track in (False, "parameters"):
        with LocalTrainingClient("tiny", seed=3) as client:
            for _ in range(3):
                call = forward_backward_custom(
                    client, DATA, "cross_entropy", regularizers=TERMS, track_grad_norms=track
                )
                client.optim_step(AdamParams(learning_rate=1e-2)).result(60)
                out = call.result(60).custom_loss
            trained.append([one.detach().clone() for one in client._model.parameters.values()])
            assert (out.total_grad_norm is None) == (track is False)
            assert out.cosines is None
    # Adam divides by gradients that may be small.
    torch.testing.assert_close(*trained, rtol=1e-5, atol=1e-5)


def test_a_term_that_was_skipped_has_none(client: LocalTrainingClient) -> None:
    def fails(flat_logprobs: Any) -> Any:
        raise RuntimeError("as the test wants it")

    terms = [pn.Term(fails, on_error="skip")]
    call = forward_backward_custom(client, DATA, "cross_entropy", regularizers=terms, track_grad_norms="parameters")
    out = call.result(60).custom_loss
    assert out["fails"].grad_norm is None
    assert float(out.base.grad_norm) == pytest.approx(float(out.total_grad_norm))


def test_an_objective_of_plain_numbers_has_no_norms(client: LocalTrainingClient) -> None:
    terms = [pn.Term(lambda data: float(len(data)), name="count", inputs="data", differentiable=False)]
    call = forward_backward_custom(client, DATA, None, regularizers=terms, track_grad_norms="parameters")
    assert call.result(60).custom_loss.total_grad_norm is None


def test_a_model_on_a_server_has_no_parameters_here() -> None:
    with pytest.raises(pn.OptionError, match='track_grad_norms="parameters"; expected True: .* on a server'):
        forward_backward_custom(RemoteClient(), batch(2), "cross_entropy", track_grad_norms="parameters")


def test_parts_of_a_backward_can_be_measured_before_it(client: LocalTrainingClient) -> None:
    graph = client.forward_with_graph(DATA).result(60)
    ones = [torch.ones(3), torch.ones(2)]
    first = graph.pulled({"logprobs": ones})
    assert all(one is None for one in graph.pulled({}).values())
    direct = graph.pulled({"params": first})
    both = graph.pulled({"logprobs": ones, "params": first})
    assert all(one.grad is None for one in client._model.parameters.values())
    graph.backward({"logprobs": ones})
    for name, one in client._model.parameters.items():
        torch.testing.assert_close(one.grad, first[name])
        torch.testing.assert_close(direct[name], first[name])
        torch.testing.assert_close(both[name], 2 * first[name])
    with pytest.raises(pn.GradientError, match="Graph.pulled: .* freed the graph"):
        graph.pulled({"logprobs": ones})
