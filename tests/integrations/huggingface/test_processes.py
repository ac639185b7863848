"""The mixin on two processes, which really are two: parameters after ten steps equal those of a loop by hand."""

from typing import Any

import pytest
import torch

from ..torchrun import torchrun
from . import cases, reference, worker


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two ranks saved."""
    return torchrun(worker, tmp_path_factory.mktemp("ranks"))


def assert_equal(found: dict[str, torch.Tensor], expected: Any) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


def logged(run: dict[str, Any], key: str) -> list[float]:
    return [entry[key] for entry in run["logs"] if key in entry]


@pytest.mark.parametrize(("accumulation", "across"), worker.LANGUAGE)
def test_a_language_model_is_trained_as_by_hand(runs: Any, accumulation: int, across: bool):
    expected = cases.language_model()
    steps = cases.windows(cases.tokens(worker.BATCHES * cases.ROWS), accumulation, ranks=2)
    losses = reference.train_language_model(expected, steps, across=across)
    for rank in runs:
        run = rank[f"language {accumulation} {across}"]
        assert run["ranks"] == 2
        assert_equal(run["parameters"], expected.state_dict())
        assert logged(run, "loss") == pytest.approx(losses, rel=1e-5)
        assert logged(run, "loss/total") == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize(("accumulation", "across"), worker.LANGUAGE)
def test_a_sink_and_the_output_have_the_objective_of_both(runs: Any, accumulation: int, across: bool):
    steps = cases.windows(cases.tokens(worker.BATCHES * cases.ROWS), accumulation, ranks=2)
    losses = reference.train_language_model(cases.language_model(), steps, across=across)
    for rank in runs:
        run = rank[f"language {accumulation} {across}"]
        assert [line["total"] for line in run["announced"]] == pytest.approx(losses, rel=1e-5)
        assert run["output"] == run["announced"][-1]
        norms = rank[f"norms {across}"]
        first = norms["announced"][0]["confidence_grad_norm"]
        assert first == pytest.approx(logged(norms, "grad_norm/confidence")[0], rel=1e-6)


@pytest.mark.parametrize("accumulation", worker.POINTS)
def test_a_model_without_a_token_count_is_trained_as_by_hand(runs: Any, accumulation: int):
    expected = cases.Regressor()
    steps = cases.windows(cases.points(worker.BATCHES * cases.ROWS), accumulation, ranks=2)
    losses = reference.train_regressor(expected, steps)
    for rank in runs:
        run = rank[f"points {accumulation}"]
        assert_equal(run["parameters"], expected.state_dict())
        assert logged(run, "loss") == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("across", worker.NORMS)
def test_norms_and_cosines_are_those_of_both_processes_together(runs: Any, across: bool):
    model = cases.language_model()
    (step,) = cases.windows(cases.tokens(worker.BATCHES * cases.ROWS), 1, ranks=2, steps=1)
    gradients = reference.gradients_of_language_model(model, step, across=across)
    norms = {f"grad_norm/{name}": gradient.norm().item() for name, gradient in gradients.items()}
    cosine = torch.cosine_similarity(gradients["base_loss"], gradients["confidence"], dim=0).item()
    for rank in runs:
        first, *_ = rank[f"norms {across}"]["logs"]
        assert {name: first[name] for name in norms} == pytest.approx(norms, rel=1e-4)
        assert first["grad_cos/base_loss__confidence"] == pytest.approx(cosine, rel=1e-4)


def test_a_resumed_run_continues_exactly_with_its_state(runs: Any):
    for rank in runs:
        whole, resumed = rank["whole"], rank["resumed"]
        for name, tensor in whole["parameters"].items():
            assert torch.equal(resumed["parameters"][name], tensor), name
        assert logged(resumed, "loss/slow")[-6:] == logged(whole, "loss/slow")[-6:]
    # The state is that of all ranks together.
    assert logged(runs[0]["whole"], "loss/slow") == logged(runs[1]["whole"], "loss/slow")


def test_fsdp1_raises(runs: Any):
    for rank in runs:
        assert "PenaltiesMixin: the model=" in rank["FSDP1"]
        assert "expected fully_shard(model)" in rank["FSDP1"]
