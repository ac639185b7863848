"""Lightning on two processes, which really are two."""

from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from ..torchrun import torchrun
from . import cases, worker


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[int, Any]]:
    """What each of the two ranks saved."""
    return torchrun(worker, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("accumulation", "epochs"), worker.EPOCHS.items())
def test_both_end_where_a_loop_by_hand_ends(runs: Any, accumulation: int, epochs: int) -> None:
    windows = cases.windows(worker.BATCHES, accumulation, ranks=2)
    expected, losses = cases.by_hand(windows * epochs, accumulation)
    assert len(losses) >= 10
    for rank in runs:
        torch.testing.assert_close(rank[accumulation]["parameters"], [p.detach() for p in expected.parameters()])
        assert rank[accumulation]["logged"]["loss/total"] == pytest.approx(losses[-1])


@pytest.mark.parametrize(("by_layer", "accumulation"), worker.SHARDED)
def test_both_end_there_under_fsdp2_with_empty_shards(runs: Any, by_layer: bool, accumulation: int) -> None:
    windows = cases.windows(worker.BATCHES, accumulation, ranks=2)
    expected, losses = cases.by_hand(windows * worker.EPOCHS[accumulation], accumulation)
    for rank in runs:
        run = rank[f"sharded {by_layer} {accumulation}"]
        torch.testing.assert_close(run["parameters"], [p.detach() for p in expected.parameters()])
        assert [line["total"] for line in run["announced"]] == pytest.approx(losses)


@pytest.mark.parametrize(("accumulation", "epochs"), worker.EPOCHS.items())
def test_a_sink_and_the_output_have_the_objective_of_both(runs: Any, accumulation: int, epochs: int) -> None:
    windows = cases.windows(worker.BATCHES, accumulation, ranks=2)
    _, losses = cases.by_hand(windows * epochs, accumulation)
    for rank in runs:
        run = rank[accumulation]
        assert [line["total"] for line in run["announced"]] == pytest.approx(losses)
        assert run["output"] == run["announced"][-1]
    assert runs[0][accumulation]["announced"] == runs[1][accumulation]["announced"]
    norms = runs[0]["norms"]["announced"][-1]
    assert norms["size_grad_norm"] == pytest.approx(runs[0]["norms"]["logged"]["grad_norm/size"])


def test_norms_and_cosines_are_those_of_both_processes_together(runs: Any) -> None:
    model = cases.network()
    ((micro,), *_) = cases.windows(worker.BATCHES, 1, ranks=2)
    x, y = (torch.cat(parts) for parts in zip(*micro, strict=True))
    logits = model(x)
    terms = {
        "base_loss": mse_loss(logits, y),
        "decay": sum(p.square().sum() for p in model.parameters()),
        "size": logits.abs().sum(),
        "level": logits.square().mean(),
    }
    gradients = {}
    for name, term in terms.items():
        found = torch.autograd.grad(term, list(model.parameters()), retain_graph=True)
        gradients[name] = torch.cat([gradient.flatten() for gradient in found])
    norms = {f"grad_norm/{name}": gradient.norm().item() for name, gradient in gradients.items()}
    cosine = torch.cosine_similarity(gradients["base_loss"], gradients["size"], dim=0).item()
    for rank in runs:
        logged = rank["norms"]["logged"]
        assert {name: logged[name] for name in norms} == pytest.approx(norms)
        assert logged["grad_cos/base_loss__size"] == pytest.approx(cosine)


def test_a_resumed_run_continues_exactly_with_its_state(runs: Any) -> None:
    for rank in runs:
        assert rank["resumed"]["logged"] == rank["whole"]["logged"]
        assert rank["saved"]["logged"]["loss/slow"] != rank["whole"]["logged"]["loss/slow"]
        for one, other in zip(rank["resumed"]["parameters"], rank["whole"]["parameters"], strict=True):
            assert torch.equal(one, other)
    # The state is that of both.
    assert runs[0]["whole"]["logged"]["loss/slow"] == runs[1]["whole"]["logged"]["loss/slow"]


def test_fsdp1_raises(runs: Any) -> None:
    for rank in runs:
        assert "PenaltiesCallback: the model=" in rank["FSDP1"]
        assert "expected fully_shard(model)" in rank["FSDP1"]


def test_processes_that_share_a_batch_raise(runs: Any) -> None:
    for rank in runs:
        assert 'the number of processes="2 with 1 parts of the data"; expected as many parts' in rank["tensor"]
