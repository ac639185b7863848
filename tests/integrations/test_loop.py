"""A pipeline in a plain PyTorch loop: `wrap_loss` and `train_step`."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import penalties as pn
from tests.libraries import DEVICE, LIBRARIES, TORCH

pytestmark = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")

L2 = pn.Term(pn.l2, weight=0.01, inputs="prediction")
L1 = pn.Term(pn.l1, weight=0.001, inputs="prediction")
SPARSITY = pn.Term(pn.l1, name="sparsity", weight=0.01, inputs="params")


def no_loss(prediction: Any, target: Any) -> torch.Tensor:
    return torch.zeros((), device=prediction.device, dtype=prediction.dtype)


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return TORCH.array([[1.0], [2.0]]), TORCH.array([[1.1], [1.9]])


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


# The loss.


def test_golden_terms_on_the_prediction_without_a_base_loss():
    terms = [pn.Term(pn.l1, inputs="prediction"), pn.Term(pn.l2, inputs="prediction")]
    loss = pn.wrap_loss(no_loss, pn.Pipeline(terms))
    assert loss(TORCH.array([2.0]), TORCH.array([0.0])).item() == 6.0


@pytest.mark.parametrize(("terms", "expected"), [([], 0.01), ([L2], 0.06), ([L2, L1], 0.063)])
def test_golden_mean_square_and_norms(terms: list[pn.Term], expected: float):
    loss = pn.wrap_loss(mse_loss, pn.Pipeline(terms))
    assert loss(*pair()).item() == pytest.approx(expected, rel=1e-6)


def test_golden_perfect_prediction_leaves_the_penalty():
    prediction, _ = pair()
    assert pn.wrap_loss(mse_loss, pn.Pipeline([L2]))(prediction, prediction).item() == pytest.approx(0.05, rel=1e-6)


def test_golden_penalty_on_parameters():
    pipeline = pn.Pipeline([pn.Term(pn.l2, weight=0.1, inputs="params")])
    loss = pn.wrap_loss(no_loss, pipeline)
    params = iter([TORCH.array([2.0])])
    assert loss(*pair(), params=params).item() == pytest.approx(0.4, rel=1e-6)


def test_loss_is_differentiable_in_all_that_it_reads():
    prediction, target = pair()
    w = TORCH.array([2.0]).requires_grad_()
    prediction.requires_grad_()
    pn.wrap_loss(mse_loss, pn.Pipeline([L2, pn.Term(pn.l1, inputs="params")]))(
        prediction, target, params=[w]
    ).backward()
    torch.testing.assert_close(prediction.grad, (prediction - target).detach() + 0.02 * prediction.detach())
    torch.testing.assert_close(w.grad, torch.ones_like(w))


@pytest.mark.parametrize("base", [cross_entropy, nn.CrossEntropyLoss(), lambda logits, labels=None: logits.sum()])
def test_base_is_called_by_position(base: Any):
    logits, labels = TORCH.array(np.eye(3)), torch.tensor([0, 2, 1], device=DEVICE)
    loss = pn.wrap_loss(base, pn.Pipeline([]))
    torch.testing.assert_close(loss(logits, labels), base(logits, labels))


def test_base_may_be_a_term_that_names_its_inputs():
    base = pn.Term(cross_entropy, name="ce", inputs=("prediction.logits", "labels"), options={"label_smoothing": 0.1})
    logits, labels = TORCH.array(np.eye(3)), torch.tensor([0, 2, 1], device=DEVICE)
    loss = pn.wrap_loss(base, pn.Pipeline([]))
    found = loss({"logits": logits}, None, labels=labels)
    torch.testing.assert_close(found, cross_entropy(logits, labels, label_smoothing=0.1))


def test_base_may_bring_metrics():
    def base(prediction: Any, target: Any) -> Any:
        return mse_loss(prediction, target), {"worst": (prediction - target).abs().max()}

    loss = pn.wrap_loss(base, pn.Pipeline([]))
    loss(*pair())
    assert loss.output.metrics()["base_loss/worst"] == pytest.approx(0.1, rel=1e-5)


def test_output_reports_base_and_terms():
    loss = pn.wrap_loss(mse_loss, pn.Pipeline([L2]))
    assert loss.output is None
    total = loss(*pair())
    assert loss.output.total is total
    assert loss.output.metrics() == pytest.approx({"l2": 5.0, "l2_weighted": 0.05, "base_loss": 0.01, "total": 0.06})


def test_weights_act_at_each_call():
    loss = pn.wrap_loss(no_loss, pn.Pipeline([L2]))
    ramp = pn.schedules.linear(0.0, 1.0, steps=3)
    found = [loss(*pair(), weights={"l2": ramp(step)}).item() for step in range(3)]
    assert found == pytest.approx([0.0, 2.5, 5.0])
    weight = TORCH.array(0.5).requires_grad_()
    loss(*pair(), weights={"l2": weight}).backward()
    assert weight.grad.item() == 5.0


def test_step_decides_which_terms_run():
    loss = pn.wrap_loss(no_loss, pn.Pipeline([L2.replace(every=2)]))
    assert [loss(*pair(), step=step).item() for step in range(3)] == pytest.approx([0.05, 0.0, 0.05])


def test_state_goes_from_call_to_call():
    loss = pn.wrap_loss(no_loss, pn.Pipeline([pn.EMA(pn.Term(pn.l1, inputs="prediction"), decay=0.9)]))
    found = [loss(TORCH.array([x]), None).item() for x in (1.0, 2.0)]
    assert found == pytest.approx([1.0, 1.1])
    kept = loss.state
    assert loss(TORCH.array([2.0]), None).item() == pytest.approx(1.19)
    loss.state = kept
    assert loss(TORCH.array([2.0]), None).item() == pytest.approx(1.19)
    loss.state = {}
    assert loss(TORCH.array([2.0]), None).item() == 2.0


def test_state_survives_steps_at_which_its_term_rests():
    term = pn.Term(pn.l1, inputs="prediction", every=2)
    loss = pn.wrap_loss(no_loss, pn.Pipeline([pn.EMA(term, decay=0.9)]))
    found = [loss(TORCH.array([x]), None, step=step).item() for step, x in enumerate((1.0, 7.0, 2.0))]
    assert found == pytest.approx([1.0, 0.0, 1.1])


def test_failed_call_leaves_state_and_output_alone():
    loss = pn.wrap_loss(no_loss, pn.Pipeline([pn.EMA(pn.Term(pn.l1, inputs="prediction")), SPARSITY]))
    loss(TORCH.array([1.0]), None, params=[TORCH.array([1.0])])
    state, output = loss.state, loss.output
    with pytest.raises(pn.InputError, match='sparsity: no input is named "params"'):
        loss(TORCH.array([2.0]), None)
    assert (loss.state, loss.output) == (state, output)


def test_pipeline_alone_keeps_nothing():
    loss = pn.wrap_loss(no_loss, pn.Pipeline([pn.EMA(pn.Term(pn.l1, inputs="prediction"), decay=0.9)]))
    loss(TORCH.array([1.0]), None)
    total = loss.pipeline.total(prediction=TORCH.array([2.0]), target=None, state=loss.state)
    assert total.item() == pytest.approx(1.1)
    assert loss.output.total.item() == 1.0


def test_wrapping_leaves_the_pipeline_as_it_was():
    pipeline = pn.Pipeline([L2])
    pn.wrap_loss(mse_loss, pipeline)
    assert pipeline.base is None


@pytest.mark.parametrize("again", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
def test_loss_can_be_copied_and_pickled(again: Any):
    loss = pn.wrap_loss(mse_loss, pn.Pipeline([pn.EMA(L2)]))
    loss(*pair())
    assert again(loss)(*pair()).item() == loss(*pair()).item()


def test_nothing_is_given_to_a_term_by_guess():
    with pytest.raises(pn.InputError, match='l1: no input is named "x"; given: "prediction", "target"'):
        pn.wrap_loss(mse_loss, pn.Pipeline(["l1"]))(*pair())


@pytest.mark.parametrize(
    ("base", "pipeline", "message"),
    [
        (mse_loss, pn.Pipeline([L2], base=mse_loss), "wrap_loss: pipeline=None; expected one without a base"),
        (mse_loss, pn.Pipeline(base=no_loss, name="old"), 'wrap_loss: pipeline="old"; expected one without a base'),
        (mse_loss, [L2], "wrap_loss: pipeline=.*expected a Pipeline"),
        (0.0, pn.Pipeline([L2]), "wrap_loss: base=0.0; expected a function of prediction and target, or a Term"),
        (pn.Term(no_loss, weight=0.5), pn.Pipeline([]), "weight 1"),
    ],
)
def test_wrong_arguments_of_the_loss_are_refused_at_once(base: Any, pipeline: Any, message: str):
    with pytest.raises(pn.OptionError, match=message):
        pn.wrap_loss(base, pipeline)


def test_failing_base_is_named():
    with pytest.raises(pn.TermError, match="base_loss: raised ValueError: Expected input batch_size"):
        pn.wrap_loss(nn.CrossEntropyLoss(), pn.Pipeline([]))(torch.zeros(2, 3), torch.zeros(4, dtype=torch.long))


def test_unknown_weight_is_refused():
    with pytest.raises(pn.InputError, match='weights: no term is named "l3"; expected one of: "l2"'):
        pn.wrap_loss(mse_loss, pn.Pipeline([L2]))(*pair(), weights={"l3": 1.0})


def test_loss_compiles_without_a_break_and_keeps_its_state():
    plain = pn.wrap_loss(mse_loss, pn.Pipeline([pn.EMA(SPARSITY), L2]))
    traced = pn.wrap_loss(mse_loss, pn.Pipeline([pn.EMA(SPARSITY), L2]))

    def call(prediction: Any, target: Any, params: Any, weight: Any) -> Any:
        return traced(prediction, target, params=params, weights={"l2": weight})

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for x in range(1, 5):
        w = TORCH.array([float(x), -2.0]).requires_grad_()
        weight = TORCH.array(0.1 * x)
        with torch._dynamo.config.patch(error_on_recompile=x > 2):  # once with state, once without
            found = compiled(*pair(), (w,), weight)
        expected = plain(*pair(), params=(w,), weights={"l2": weight})
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(total, w)[0] for total in (found, expected)))
        assert traced.output.metrics() == pytest.approx(plain.output.metrics())
        torch.testing.assert_close(traced.state["sparsity"]["before"], plain.state["sparsity"]["before"])


def test_total_of_its_pipeline_compiles_without_a_break():
    loss = pn.wrap_loss(mse_loss, pn.Pipeline([L2, L1]))

    def total(prediction: Any, target: Any) -> Any:
        return loss.pipeline.total(prediction=prediction, target=target)

    found = torch.compile(total, fullgraph=True, backend="aot_eager")(*pair())
    assert found.item() == pytest.approx(0.063, rel=1e-6)


# The step.


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


def test_step_is_counted_from_zero_and_can_go_on():
    step = stepper(SPARSITY, schedules={"sparsity": pn.schedules.piecewise({0: 0.0, 1: 1.0, 7: 5.0})})
    weights = []
    for _ in range(2):
        step(*batch())
        weights.append(step.output["sparsity"].weight)
    assert step.count == 2
    step.count = 7
    step(*batch())
    assert [*weights, step.output["sparsity"].weight] == [0.0, 1.0, 5.0]


def test_terms_that_rest_are_absent_from_the_metrics():
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


def test_state_goes_from_step_to_step_and_survives_a_restart(tmp_path: Path):
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


def test_gradient_is_clipped_to_max_norm():
    step = stepper(SPARSITY, max_norm=1e-3)
    before = [p.detach().clone() for p in step.model.parameters()]
    metrics = step(*batch())
    moved = pn.l2([a - b for a, b in zip(step.model.parameters(), before, strict=True)]).sqrt().item()
    assert moved == pytest.approx(0.1 * 1e-3, rel=1e-3)
    assert metrics["total_grad_norm"] > 0.1
    assert step.output.total_grad_norm.item() == metrics["total_grad_norm"]


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
def test_input_that_the_step_gives_itself_is_refused(name: str):
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
        ([SPARSITY], {"max_norm": 0}, pn.OptionError, "max_norm=0; expected None or a number above 0"),
        ([pn.Term(pn.l1, name="loss")], {}, pn.OptionError, 'pipeline="loss"; expected terms of other names than loss'),
        ([pn.Term(pn.l1, name="penalty_total")], {}, pn.OptionError, "penalty_total"),
    ],
)
def test_wrong_arguments_of_the_step_are_refused_at_once(terms: Any, options: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        stepper(*terms, **options)


def test_step_refuses_a_pipeline_with_a_base():
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


def test_a_captured_activation_is_an_input_like_any_other() -> None:
    captured: dict[str, torch.Tensor] = {}
    hidden, head = torch.nn.Linear(10, 8), torch.nn.Linear(8, 1)
    hidden.register_forward_hook(lambda module, args, output: captured.update(hidden=output))
    loss = pn.wrap_loss(torch.nn.functional.mse_loss, pn.Pipeline([pn.Term(pn.l2, inputs="hidden")]))
    prediction = torch.nn.Sequential(hidden, head)(torch.ones(1, 10))
    total = loss(prediction, prediction.detach(), **captured)
    assert (tuple(prediction.shape), tuple(captured["hidden"].shape)) == ((1, 1), (1, 8))
    total.backward()
    # The base is 0, so that all of the gradient at the first layer comes from the activation's penalty.
    torch.testing.assert_close(hidden.bias.grad, 2 * captured["hidden"][0].detach())
