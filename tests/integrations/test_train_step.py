"""`train_step`: one step of a plain PyTorch loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import penalties as pn
from tests.integrations.cases import L1, L2, SPARSITY
from tests.libraries import DEVICE, LIBRARIES, TORCH

pytestmark = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")


class Network(nn.Module):
    """A small regression that counts how often it runs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1))
        self.to(DEVICE, torch.float64)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layers(x)


def batch(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return TORCH.array(rng.normal(size=(8, 3)), "float64"), TORCH.array(rng.normal(size=(8, 1)), "float64")


def stepper(*terms: pn.Term, model: nn.Module | None = None, lr: float = 0.1, **options: Any) -> Any:
    model = Network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return pn.train_step(model, mse_loss, pn.Pipeline(terms), optimizer, **options)


def test_step_equals_a_loop_by_hand():
    schedule = pn.schedules.linear(0.0, 0.1, steps=4)
    step = stepper(SPARSITY, L2, schedules={"sparsity": schedule}, max_norm=0.5)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(5):
        x, y = batch(index)
        torch.manual_seed(index)  # dropout draws
        metrics = step(x, y)
        torch.manual_seed(index)
        optimizer.zero_grad()
        prediction = model(x)
        base = mse_loss(prediction, y)
        penalty = schedule(index) * pn.l1(model.parameters()) + 0.01 * pn.l2(prediction)
        (base + penalty).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        assert metrics["base_loss"] == base.item()
        assert metrics["penalty_total"] == pytest.approx(penalty.item(), rel=1e-12)
        assert metrics["total_grad_norm"] == pytest.approx(norm.item(), rel=1e-12)
    for (name, found), expected in zip(step.model.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14, msg=name)


def test_plain_step_equals_a_loop_by_hand_to_the_last_bit():
    step = stepper(SPARSITY)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(5):
        x, y = batch(index)
        torch.manual_seed(index)
        step(x, y)
        torch.manual_seed(index)
        optimizer.zero_grad()
        (mse_loss(model(x), y) + 0.01 * pn.l1(model.parameters())).backward()
        optimizer.step()
    for found, expected in zip(step.model.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(found, expected)


def test_step_runs_the_model_once_and_in_its_own_mode():
    step = stepper(SPARSITY, L2)
    before = step.model.layers[1].running_mean.clone()
    step(*batch())
    assert step.model.calls == 1
    assert not torch.equal(step.model.layers[1].running_mean, before)
    step.model.eval()
    before = step.model.layers[1].running_mean.clone()
    step(*batch())
    assert torch.equal(step.model.layers[1].running_mean, before)


def test_step_metrics_have_the_promised_keys():
    metrics = stepper(SPARSITY)(*batch())
    assert list(metrics) == ["sparsity", "sparsity_weighted", "base_loss", "total", "penalty_total", "loss"]
    assert all(type(number) is float for number in metrics.values())
    assert metrics["loss"] == metrics["total"] == pytest.approx(metrics["base_loss"] + metrics["penalty_total"])
    assert metrics["penalty_total"] == metrics["sparsity_weighted"]


def test_step_without_terms_is_the_base_loss():
    metrics = stepper()(*batch())
    assert metrics["penalty_total"] == 0.0
    assert metrics["loss"] == metrics["base_loss"]


def test_step_reads_its_metrics_in_one_transfer(monkeypatch: pytest.MonkeyPatch):
    step = stepper(SPARSITY, L2, L1, max_norm=1.0)
    from penalties.backends import torch as backend

    reads = []
    read = backend.read
    monkeypatch.setattr(backend, "read", lambda arrays: reads.append(len(arrays)) or read(arrays))
    step(*batch())
    assert len(reads) == 1


def test_steps_are_counted_from_zero_and_can_be_resumed():
    step = stepper(SPARSITY, schedules={"sparsity": pn.schedules.piecewise({0: 0.0, 1: 1.0, 7: 5.0})})
    weights = []
    for _ in range(2):
        step(*batch())
        weights.append(step.output["sparsity"].weight)
    assert step.count == 2
    step.count = 7
    step(*batch())
    assert [*weights, step.output["sparsity"].weight] == [0.0, 1.0, 5.0]


def test_terms_that_do_not_run_are_absent_from_the_metrics():
    step = stepper(SPARSITY.replace(every=2))
    assert ["sparsity" in step(*batch()) for _ in range(3)] == [True, False, True]


def test_step_offers_input_prediction_target_and_what_is_passed():
    def reads(input: Any, prediction: Any, target: Any, params: Any, noise: Any) -> Any:
        seen.update(input=input, prediction=prediction, target=target, params=params, noise=noise)
        return prediction.sum()

    seen: dict[str, Any] = {}
    step = stepper(pn.Term(reads))
    x, y = batch()
    step(x, y, noise="noise")
    assert seen["input"] is x
    assert seen["target"] is y
    assert seen["prediction"].shape == y.shape
    assert all(a is b for a, b in zip(seen["params"], step.model.parameters(), strict=True))
    assert seen["noise"] == "noise"


def test_parameters_that_are_not_trained_are_no_input():
    model = Network()
    model.layers[0].requires_grad_(False)
    metrics = stepper(SPARSITY, model=model, lr=0.0)(*batch())
    assert metrics["sparsity"] == pytest.approx(pn.l1(p for p in model.parameters() if p.requires_grad).item())
    assert metrics["sparsity"] < pn.l1(model.parameters()).item()


def test_parameters_that_deepspeed_keeps_elsewhere_raise():
    step = stepper(SPARSITY)
    for parameter in step.model.parameters():
        # What its ZeRO stage 3 leaves: an empty tensor, and the size that it had.
        parameter.ds_numel, parameter.data = parameter.numel(), parameter.data.new_empty(0)
    with pytest.raises(pn.OptionError, match="DeepSpeed ZeRO stage 3.*use stage 1 or 2"):
        step(*batch())


def test_state_is_kept_between_steps_and_survives_a_restart(tmp_path: Path):
    term = pn.Normalized(SPARSITY, decay=0.5)
    step = stepper(term)
    sizes = []
    for _ in range(3):
        sizes.append(pn.l1(step.model.parameters()).item())
        step(*batch())
    scale = 0.5 * (0.5 * sizes[0] + 0.5 * sizes[1]) + 0.5 * sizes[2]
    assert step.output["sparsity"].value.item() == pytest.approx(sizes[2] / scale)

    pn.save_state(step.loss.state, tmp_path / "state.safetensors")
    again = stepper(term, model=step.model)
    again.loss.state = pn.load_state(tmp_path / "state.safetensors", library="torch", device=DEVICE)
    size = pn.l1(step.model.parameters()).item()
    again(*batch())
    assert again.output["sparsity"].value.item() == pytest.approx(size / (0.5 * scale + 0.5 * size))


def counting(prediction: Any, state: Any = None) -> Any:
    """A term whose state does not look at its value."""
    return pn.Evaluation(prediction.sum(), state=(0.0 if state is None else state) + prediction.detach().sum())


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_that_the_scaler_skips_leaves_the_count_and_the_state(parts: int):
    scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0)
    model = nn.Linear(3, 1).to(DEVICE, torch.float64)
    step = stepper(pn.Term(counting, 1e-3, scope="mean"), model=model, scaler=scaler)
    (x, y), infinite = batch(), torch.full((8, 3), torch.inf, dtype=torch.float64, device=DEVICE)
    step.accumulate([(x, y)] * parts)
    before, weight = step.loss.state["counting"].clone(), model.weight.detach().clone()
    metrics = step.accumulate([(infinite, y)] * parts)
    assert not np.isfinite(metrics["loss"])
    assert step.count == 1
    assert torch.equal(step.loss.state["counting"], before)
    assert torch.equal(model.weight, weight)
    step.accumulate([(x, y)] * parts)
    assert step.count == 2
    assert torch.isfinite(step.loss.state["counting"])


def test_gradient_is_clipped_to_max_norm():
    step = stepper(SPARSITY, max_norm=1e-3)
    before = [p.detach().clone() for p in step.model.parameters()]
    metrics = step(*batch())
    moved = pn.l2([a - b for a, b in zip(step.model.parameters(), before, strict=True)]).sqrt().item()
    assert moved == pytest.approx(0.1 * 1e-3, rel=1e-3)
    assert metrics["total_grad_norm"] > 0.1
    assert step.output.total_grad_norm.item() == metrics["total_grad_norm"]


def test_only_what_the_optimizer_steps_is_clipped_and_counted_in_the_norm():
    def train(frozen: bool) -> tuple[Any, list[float]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double().to(DEVICE)
        model[0].requires_grad_(not frozen)
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
        step = pn.train_step(model, mse_loss, pn.Pipeline(), optimizer, max_norm=0.1)
        return model[2].weight, [step(*batch())["total_grad_norm"] for _ in range(5)]

    (weight, norms), (expected, alone) = train(frozen=False), train(frozen=True)
    assert torch.equal(weight, expected)
    assert norms == alone


def test_value_that_is_not_finite_is_found_by_a_check_of_the_output():
    step = stepper(pn.Term(lambda prediction: prediction.sum() * float("nan"), name="broken"))
    assert np.isnan(step(*batch())["loss"])
    with pytest.raises(pn.NonFiniteError, match="broken: the value is nan"):
        step.output.check()


def test_penalty_on_parameters_finds_the_support():
    torch.manual_seed(0)
    x = torch.randn(64, 10, dtype=torch.float64, device=DEVICE)
    y = x[:, :2].sum(1, keepdim=True)
    model = nn.Linear(10, 1, bias=False).to(x)
    step = stepper(SPARSITY, model=model, lr=0.05)
    losses = [step(x, y)["loss"] for _ in range(300)]
    weights = model.weight.detach().flatten().abs()
    assert losses[-1] < 0.05 < losses[0]
    assert weights[:2].min() > 0.9
    assert weights[2:].max() < 0.01


@pytest.mark.parametrize("name", ["input", "prediction", "target", "params"])
def test_inputs_that_the_step_passes_itself_raise(name: str):
    step = stepper(SPARSITY)
    with pytest.raises(pn.InputError, match=f'train_step: the step passes "{name}" to the terms itself'):
        step(*batch(), **{name: 1})
    assert step.count == step.model.calls == 0


@pytest.mark.parametrize(
    ("terms", "options", "error", "message"),
    [
        ([SPARSITY], {"schedules": {"l2": abs}}, pn.InputError, 'schedules names "l2", .* there is "sparsity"'),
        ([], {"schedules": {"l2": abs}}, pn.InputError, "there is none"),
        ([SPARSITY], {"schedules": {"sparsity": 0.1}}, pn.OptionError, "the schedule of sparsity=0.1; expected a func"),
        ([L2], {"norms_at": "params"}, pn.OptionError, "norms_at.*expected None, or an input that a term reads: pred"),
        ([L2], {"norms_at": "prediction", "norms_every": 0}, pn.OptionError, "norms_every=0; expected a whole number"),
        ([L2], {"norms_at": "prediction", "cosines": 1}, pn.OptionError, "cosines=1"),
        ([SPARSITY], {"scaler": object()}, pn.OptionError, "scaler.*expected None or a torch.amp.GradScaler"),
        ([SPARSITY], {"max_norm": 0}, pn.OptionError, "max_norm=0; expected None or a number above 0"),
        ([pn.Term(pn.l1, name="loss")], {}, pn.OptionError, 'pipeline="loss"; expected terms of other names than loss'),
        ([pn.Term(pn.l1, name="penalty_total")], {}, pn.OptionError, "penalty_total"),
    ],
)
def test_wrong_arguments_of_the_step_raise_at_once(terms: Any, options: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        stepper(*terms, **options)


def test_a_pipeline_with_a_base_raises():
    model = Network()
    with pytest.raises(pn.OptionError, match="expected one without a base"):
        pn.train_step(model, mse_loss, pn.Pipeline(base=mse_loss), torch.optim.SGD(model.parameters()))


def test_a_step_has_these_metrics_and_starts_with_nothing() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    terms = [pn.Term(pn.l1, 0.01, inputs="params"), pn.EMA(pn.Term(pn.l2, inputs="prediction"), decay=0.9)]
    step = pn.train_step(model, torch.nn.functional.mse_loss, pn.Pipeline(terms), optimizer)
    assert (step.count, step.loss.state, step.output) == (0, {}, None)
    metrics = step(torch.ones(4, 2), torch.ones(4, 1))
    assert list(metrics) == [
        *("l1", "l1_weighted", "l2", "l2_weighted", "base_loss", "total", "penalty_total", "loss"),
    ]
    assert (step.count, list(step.loss.state)) == (1, ["l2"])
