"""Twenty steps on the server, and the same twenty in torch."""

from typing import Any

import pytest
import torch
from tinker import types

import penalties as pn
from penalties.training import forward_backward_custom

from .batches import batch
from .reference import Reference
from .server import PATIENCE, Server

STEPS = 20
RATE = 3e-3
WEIGHTS = {"drift": 0.05, "spread": 1e-3}


def mean_nll(data: Any, logprobs: Any) -> Any:
    weights = [torch.as_tensor(one.loss_fn_inputs["weights"].to_numpy()) for one in data]
    total = sum((one * weight).sum() for one, weight in zip(logprobs, weights, strict=True))
    return -total / sum(float(weight.sum()) for weight in weights), {}


def drift(logprobs: Any, initial: Any) -> Any:
    """How far the model has gone from where it began, estimated at the tokens."""
    ratios = [torch.as_tensor(other) - one for one, other in zip(logprobs, initial, strict=True)]
    return torch.cat([ratio.exp() - 1 - ratio for ratio in ratios]).mean()


def in_torch(reference: Reference, data: Any) -> list[float]:
    """The same steps, with everything written out."""
    adam = torch.optim.Adam(reference.parameters().values(), lr=RATE, betas=(0.9, 0.95), eps=1e-12)
    initial = [one.detach() for one in reference.logprobs(data)]
    losses: list[float] = []
    for _ in range(STEPS):
        logprobs = reference.logprobs(data)
        loss = mean_nll(data, logprobs)[0] + WEIGHTS["drift"] * drift(logprobs, initial)
        loss = loss + WEIGHTS["spread"] * torch.cat(logprobs).square().sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses


def test_twenty_steps_with_regularizers_are_those_of_torch(server: Server, service: Any) -> None:
    client = service.create_lora_training_client(base_model=str(server.model), rank=8, seed=2)
    data = batch()
    reference = Reference(server.model, server.export(client))
    initial = [
        one["logprobs"].to_numpy() for one in client.forward(data, "cross_entropy").result(PATIENCE).loss_fn_outputs
    ]
    terms = [
        pn.Term(drift, weight=WEIGHTS["drift"]),
        pn.Term(pn.l2, name="spread", weight=WEIGHTS["spread"], inputs="flat_logprobs"),
    ]
    adam = types.AdamParams(learning_rate=RATE, beta1=0.9, beta2=0.95, eps=1e-12)
    losses: list[float] = []
    for _ in range(STEPS):
        backward = forward_backward_custom(
            client, data, mean_nll, regularizers=terms, references={"initial": initial}, server="averages"
        )
        step = client.optim_step(adam)
        result = backward.result(PATIENCE)
        step.result(PATIENCE)
        assert result.metrics["drift"] >= 0
        losses.append(result.custom_loss.total)
    assert losses[-1] < 0.8 * losses[0]
    assert losses == pytest.approx(in_torch(reference, data), rel=1e-4)
