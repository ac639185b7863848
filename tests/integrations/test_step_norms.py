"""`train_step(norms_at=…)`: norms and cosines of the terms in the output, the metrics and the events of a step."""

from typing import Any

import pytest
import torch

import penalties as pn
from penalties import telemetry
from tests.libraries import LIBRARIES, TORCH

from .test_accumulation import DECAY, SIZE, batches, network, stepper

pytestmark = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")


def expected(name: str, parts: int) -> dict[str, float]:
    """Norms in the first of so many micro-batches, of an objective of this one alone."""
    model = network()
    (x, y), *_ = batches(parts, 0)
    prediction = model(x)
    terms = {
        "base_loss": torch.nn.functional.mse_loss(prediction, y),
        "decay": pn.l2(model.parameters()),
        "size": pn.l1(prediction),
    }
    points = list(model.parameters()) if name == "params" else [prediction]
    norms = {}
    for term, value in terms.items():
        found = torch.autograd.grad(value, points, retain_graph=True, allow_unused=True)
        if any(gradient is not None for gradient in found):
            norms[term] = torch.cat([g.flatten() for g in found if g is not None]).norm().item()
    return norms


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", ["prediction", "params"])
def test_events_metrics_and_output_have_the_norms(name: str, parts: int) -> None:
    step = stepper(network(), DECAY, SIZE, norms_at=name)
    heard: list[tuple[str, Any, Any]] = []
    handler = telemetry.attach(lambda event, measured, metadata: heard.append((event, measured, metadata)))
    try:
        metrics = step.accumulate(batches(parts, 0))
    finally:
        telemetry.detach(handler)
    norms = expected(name, parts)
    assert len(norms) == (3 if name == "params" else 2)
    assert {term: metrics[f"{term}_grad_norm"] for term in norms} == pytest.approx(norms)
    assert {term: float(step.output[term].grad_norm) for term in norms} == pytest.approx(norms)
    assert step.output.cosines is not None
    (stop,) = [metadata["output"] for event, _, metadata in heard if event == "pipeline.stop"]
    assert stop is step.output
    told = {data["name"]: measured["grad_norm"] for event, measured, data in heard if event == "term.stop"}
    assert {term: float(told[term]) for term in norms} == pytest.approx(norms)


def test_the_step_is_the_one_without_norms() -> None:
    model, plain = network(), network()
    measured = stepper(model, DECAY, SIZE, norms_at="prediction", max_norm=0.5)
    alone = stepper(plain, DECAY, SIZE, max_norm=0.5)
    for index in range(3):
        found = measured.accumulate(batches(2, index))
        # The norm of the whole gradient, before clipping.
        assert found["total_grad_norm"] == alone.accumulate(batches(2, index))["total_grad_norm"]
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_norms_are_taken_in_every_so_many_steps_and_cosines_can_be_left_out() -> None:
    step = stepper(network(), SIZE, norms_at="prediction", norms_every=2, cosines=False)
    found = ["size_grad_norm" in step.accumulate(batches(1, index)) for index in range(4)]
    assert found == [True, False, True, False]
    assert step.output.cosines is None


def test_an_optimizer_that_evaluates_several_times_has_those_of_the_first() -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    step = stepper(model, DECAY, SIZE, optimizer=optimizer, closure=True, norms_at="prediction")
    metrics = step.accumulate(batches(1, 0))
    norms = expected("prediction", 1)
    assert {term: metrics[f"{term}_grad_norm"] for term in norms} == pytest.approx(norms)
