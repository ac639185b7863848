"""Known updates of every transform in PyTorch, with plain gradient descent."""

from typing import Any

import pytest
import torch

from penalties.integrations import torch as transforms
from tests.integrations.optimizers.cases import sgd, weight
from tests.integrations.optimizers.golden import NOISE, UPDATES

# Decay alone comes to the same if it is decoupled; clipping would not reach it.
COUPLED = [(*row, False) for row in UPDATES]
DECOUPLED = [(*row, True) for row in UPDATES if {name for name, _ in row[1]} == {"decay"}]


@pytest.mark.parametrize(
    ("chain", "lr", "weights", "gradients", "expected", "decoupled"),
    [pytest.param(*row[1:], id=f"{row[0]}{', decoupled' * row[-1]}") for row in COUPLED + DECOUPLED],
)
def test_update_is_the_known_one(
    chain: list[Any], lr: float, weights: Any, gradients: Any, expected: Any, decoupled: bool
):
    parameters = [weight(values, gradient) for values, gradient in zip(weights, gradients, strict=True)]
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = sgd(*parameters, lr=lr)
    for index, (name, options) in enumerate(chain):
        given = {**options, "decoupled": decoupled} if name == "decay" else options
        getattr(transforms, name)(optimizer, **given, name=f"{name} {index}")
    optimizer.step()
    for parameter, old, update in zip(parameters, before, expected, strict=True):
        torch.testing.assert_close(parameter - old, torch.as_tensor(update).to(parameter), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("variance", "decay", "expected"), [row[1:] for row in NOISE], ids=[row[0] for row in NOISE])
def test_variance_of_noise_falls_as_known(variance: float, decay: float, expected: dict[int, float]):
    parameter = weight([0.0] * 20_000)
    optimizer = sgd(parameter)
    noise = transforms.gradient_noise(optimizer, variance=variance, decay=decay, seed=1)
    for step in range(max(expected) + 1):
        parameter.grad.zero_()
        optimizer.step()
        if step in expected:
            assert parameter.grad.var().item() == pytest.approx(expected[step], rel=0.04)
            assert abs(parameter.grad.mean().item()) < 0.04 * expected[step] ** 0.5
    assert noise.steps == max(expected) + 1


def test_noise_differs_from_step_to_step_and_is_near_the_gradient():
    parameter = weight([0.0], [1.0])
    optimizer = sgd(parameter)
    noise = transforms.gradient_noise(optimizer, variance=0.1, seed=42)
    assert noise.steps == 0
    updates = []
    for _ in range(10):
        before = parameter.item()
        parameter.grad.fill_(1.0)
        optimizer.step()
        updates.append(parameter.item() - before)
    assert len(set(updates)) == 10
    assert all(0 < abs(update + 1) < 1 for update in updates)
    assert noise.steps == 10
