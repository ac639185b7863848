"""`wrap_loss`: a pipeline added to a loss function."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import penalties as pn
from tests.integrations.cases import L1, L2, SPARSITY
from tests.libraries import DEVICE, LIBRARIES, TORCH

pytestmark = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")


def no_loss(prediction: Any, target: Any) -> torch.Tensor:
    return torch.zeros((), device=prediction.device, dtype=prediction.dtype)


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return TORCH.array([[1.0], [2.0]]), TORCH.array([[1.1], [1.9]])


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


def test_state_is_kept_between_calls():
    loss = pn.wrap_loss(no_loss, pn.Pipeline([pn.EMA(pn.Term(pn.l1, inputs="prediction"), decay=0.9)]))
    found = [loss(TORCH.array([x]), None).item() for x in (1.0, 2.0)]
    assert found == pytest.approx([1.0, 1.1])
    kept = loss.state
    assert loss(TORCH.array([2.0]), None).item() == pytest.approx(1.19)
    loss.state = kept
    assert loss(TORCH.array([2.0]), None).item() == pytest.approx(1.19)
    loss.state = {}
    assert loss(TORCH.array([2.0]), None).item() == 2.0


def test_state_survives_steps_at_which_its_term_does_not_run():
    term = pn.Term(pn.l1, inputs="prediction", every=2)
    loss = pn.wrap_loss(no_loss, pn.Pipeline([pn.EMA(term, decay=0.9)]))
    found = [loss(TORCH.array([x]), None, step=step).item() for step, x in enumerate((1.0, 7.0, 2.0))]
    assert found == pytest.approx([1.0, 0.0, 1.1])


def test_a_failed_call_changes_neither_state_nor_output():
    loss = pn.wrap_loss(no_loss, pn.Pipeline([pn.EMA(pn.Term(pn.l1, inputs="prediction")), SPARSITY]))
    loss(TORCH.array([1.0]), None, params=[TORCH.array([1.0])])
    state, output = loss.state, loss.output
    with pytest.raises(pn.InputError, match='sparsity: no input is named "params"'):
        loss(TORCH.array([2.0]), None)
    assert (loss.state, loss.output) == (state, output)


def test_calling_the_pipeline_itself_keeps_no_state():
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


def test_inputs_are_found_by_name_only():
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
def test_wrong_arguments_of_the_loss_raise_at_once(base: Any, pipeline: Any, message: str):
    with pytest.raises(pn.OptionError, match=message):
        pn.wrap_loss(base, pipeline)


def test_failing_base_is_named():
    with pytest.raises(pn.TermError, match="base_loss: raised ValueError: Expected input batch_size"):
        pn.wrap_loss(nn.CrossEntropyLoss(), pn.Pipeline([]))(torch.zeros(2, 3), torch.zeros(4, dtype=torch.long))


def test_an_unknown_weight_raises():
    with pytest.raises(pn.InputError, match='weights: no term is named "l3"; expected one of: "l2"'):
        pn.wrap_loss(mse_loss, pn.Pipeline([L2]))(*pair(), weights={"l3": 1.0})


@pytest.mark.slow
def test_loss_compiles_without_a_break_and_keeps_its_state():
    plain = pn.wrap_loss(mse_loss, pn.Pipeline([pn.EMA(SPARSITY), L2]))
    traced = pn.wrap_loss(mse_loss, pn.Pipeline([pn.EMA(SPARSITY), L2]))

    def call(prediction: Any, target: Any, params: Any, weight: Any) -> Any:
        return traced(prediction, target, params=params, weights={"l2": weight})

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for x in range(1, 4):
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


def token_loss(prediction: Any, target: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    if num_items_in_batch is None:
        return cross_entropy(prediction, target)
    return cross_entropy(prediction, target, reduction="sum") / num_items_in_batch


def test_the_base_is_given_the_number_of_items_of_the_whole_step():
    logits, labels = TORCH.array(np.eye(3)), torch.tensor([0, 2, 1], device=DEVICE)
    loss = pn.wrap_loss(token_loss, pn.Pipeline([]))
    expected = cross_entropy(logits, labels, reduction="sum") / 12
    torch.testing.assert_close(loss(logits, labels, num_items_in_batch=12), expected)
    torch.testing.assert_close(loss(logits, labels), cross_entropy(logits, labels))


def test_a_base_term_may_read_the_number_of_items():
    names = ("prediction", "target", "num_items_in_batch")
    base = pn.Term(token_loss, inputs=dict(zip(names, names, strict=True)))
    logits, labels = TORCH.array(np.eye(3)), torch.tensor([0, 2, 1], device=DEVICE)
    found = pn.wrap_loss(base, pn.Pipeline([]))(logits, labels, num_items_in_batch=12)
    torch.testing.assert_close(found, cross_entropy(logits, labels, reduction="sum") / 12)


@pytest.mark.parametrize("base", [mse_loss, nn.MSELoss(), pn.Term(mse_loss, inputs=("prediction", "target"))])
def test_a_base_that_ignores_the_number_of_items_raises(base: Any):
    loss = pn.wrap_loss(base, pn.Pipeline([]))
    with pytest.raises(pn.OptionError, match="expected a loss that takes num_items_in_batch and divides by it"):
        loss(*pair(), num_items_in_batch=4)


def test_terms_are_scaled_by_the_share_of_items():
    terms = [pn.Term(pn.entropy, inputs="prediction"), pn.Term(pn.l2, inputs="params", weight=0.5)]
    loss = pn.wrap_loss(token_loss, pn.Pipeline(terms), items=lambda target: (target != -100).sum())
    logits, params = TORCH.array(np.log([[0.5, 0.5], [0.5, 0.5]])), [TORCH.array([2.0])]
    labels = torch.tensor([0, -100], device=DEVICE)
    loss(logits, labels, params=params, num_items_in_batch=4)
    assert loss.output.metrics()["entropy_weighted"] == pytest.approx(np.log(2) / 4, rel=1e-6)
    assert loss.output.metrics()["l2_weighted"] == pytest.approx(2.0 / 4)
    with pytest.raises(pn.InputError, match="pass items=, a function from the targets to their number, or use Penalt"):
        pn.wrap_loss(token_loss, pn.Pipeline(terms))(logits, labels, params=params, num_items_in_batch=4)


@pytest.mark.parametrize("term", [L2, pn.Term(lambda prediction: prediction.sum(), name="own")])
def test_terms_that_a_loss_function_cannot_scale_raise(term: pn.Term):
    loss = pn.wrap_loss(token_loss, pn.Pipeline([term]), items=len)
    with pytest.raises(pn.OptionError, match=f'{term.name}: scope=.*; expected scope="mean" or "step"'):
        loss(TORCH.array(np.eye(3)), torch.tensor([0, 2, 1], device=DEVICE), num_items_in_batch=4)


def test_calls_without_gradients_leave_the_state_alone():
    loss = pn.wrap_loss(mse_loss, pn.Pipeline([pn.EMA(pn.Term(pn.l2, inputs="prediction"), decay=0.5)]))
    x, y = torch.ones(2, 1), torch.zeros(2, 1)
    loss(x, y)
    before = loss.state
    with torch.no_grad():
        loss(10 * x, y)
    assert loss.state is before
    assert loss.output["l2"].value.item() == pytest.approx((2 + 200) / 2)
