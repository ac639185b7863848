"""Captures and collections as inputs of a step of several micro-batches."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import penalties as pn
from tests.libraries import LIBRARIES, TORCH

from .test_accumulation import assert_equal, batches, network, stepper

pytestmark = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")

LEVEL = pn.Term(pn.l2, 0.3, name="level", inputs="hidden.1", options={"reduction": "mean"})


class Routed(nn.Module):
    """Leaves a loss on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layers[1](self.layers[0](x))
        pn.auxiliary("level", hidden.square().mean())
        return self.layers[2](hidden)


def by_hand(count: int) -> nn.Module:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(3):
        optimizer.zero_grad()
        for x, y in batches(count, index):
            hidden = model[:2](x)
            ((mse_loss(model[2](hidden), y) + 0.3 * hidden.square().mean()) / count).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("count", [1, 4])
def test_a_capture_has_the_activations_of_one_micro_batch_at_a_time(count: int) -> None:
    model = network()
    step = stepper(model, LEVEL)
    with pn.capture(model, "1") as hidden:
        for index in range(3):
            hidden.clear()
            step.accumulate([(x, y, {"hidden": hidden}) for x, y in batches(count, index)])
    assert_equal(model, by_hand(count))


@pytest.mark.parametrize("count", [1, 4])
def test_a_collection_has_the_losses_of_one_micro_batch_at_a_time(count: int) -> None:
    model = Routed()
    step = stepper(model, pn.Term(pn.precomputed, 0.3, name="level", inputs="losses.level", scope="mean"))
    with pn.collect() as losses:
        for index in range(3):
            losses.clear()
            step.accumulate([(x, y, {"losses": losses}) for x, y in batches(count, index)])
            assert list(losses) == ["level.0"]
    assert_equal(model.layers, by_hand(count))


def test_what_was_recorded_before_the_step_stays() -> None:
    model, teacher = network(), network()
    term = pn.Term(pn.consistency, 0.3, name="near", inputs=("hidden.1", "taught.1"))
    step = stepper(model, term)
    ((x, y),) = batches(1, 0)
    taught: Any
    with torch.no_grad(), pn.capture(teacher, "1") as taught:
        teacher(x + 1)
    with pn.capture(model, "1") as hidden:
        inputs = {"hidden": hidden, "taught": taught}
        found = step.accumulate([(x, y, inputs), (x, y, inputs)])["near"]
    assert found == pytest.approx(pn.consistency(network()[:2](x), taught["1"]).item())


def test_an_optimizer_that_evaluates_several_times_sees_one_evaluation_at_a_time() -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    step = stepper(model, LEVEL, optimizer=optimizer, closure=True)
    ((x, y),) = batches(1, 0)
    with pn.capture(model, "1") as hidden:
        step(x, y, hidden=hidden)
        assert not isinstance(hidden["1"], list)
    assert step.count == 1
