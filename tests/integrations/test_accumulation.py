"""Gradient accumulation by `train_step` and `Accumulation`, against loops by hand."""

import copy
import dataclasses
import functools
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import penalties as pn
from penalties.integrations.accumulation import Accumulation
from penalties.integrations.scope import MicroBatch
from tests.libraries import DEVICE, LIBRARIES, TORCH

pytestmark = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")

DECAY = pn.Term(pn.l2, name="decay", weight=0.1, inputs="params")
SIZE = pn.Term(pn.l1, name="size", weight=0.01, inputs="prediction")
MAGNITUDE = pn.Term(pn.output_magnitude, name="magnitude", weight=0.3, inputs="prediction", options={"target": 1.0})
SPREAD = pn.Term(pn.l2, name="spread", weight=0.2, inputs="prediction", options={"reduction": "mean"})
STEPS = 10


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(DEVICE, torch.float64)


def batches(count: int, seed: int, rows: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    return [tuple(TORCH.array(rng.normal(size=(rows, n)), "float64") for n in (3, 1)) for _ in range(count)]


def stepper(model: nn.Module, *terms: pn.Term, optimizer: Any = None, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    return pn.train_step(model, options.pop("base", mse_loss), pn.Pipeline(terms), optimizer, **options)


def assert_equal(found: nn.Module, expected: nn.Module, rtol: float = 1e-9) -> None:
    for (name, a), b in zip(found.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-12, msg=name)


@pytest.mark.parametrize("count", [1, 4, 8])
def test_accumulation_equals_a_loop_by_hand(count: int):
    model, reference = network(), network()
    step = stepper(model, DECAY, SIZE, MAGNITUDE, max_norm=0.5)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for index in range(STEPS):
        parts = batches(count, index)
        metrics = step.accumulate(parts)
        optimizer.zero_grad()
        loss = 0.1 * pn.l2(reference.parameters())
        for x, y in parts:
            prediction = reference(x)
            loss = loss + mse_loss(prediction, y) / count + 0.01 * pn.l1(prediction)
            loss = loss + 0.3 * pn.output_magnitude(prediction) / count
        loss.backward()
        norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        optimizer.step()
        assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-12)
        assert metrics["total_grad_norm"] == pytest.approx(norm.item(), rel=1e-9)
    assert_equal(model, reference)
    assert step.count == STEPS


def test_separable_terms_equal_the_unsplit_batch():
    model, whole = network(), network()
    split, unsplit = stepper(model, DECAY, SIZE, SPREAD), stepper(whole, DECAY, SIZE, SPREAD)
    for index in range(3):
        parts = batches(4, index)
        found = split.accumulate(parts)
        expected = unsplit(*(torch.cat(column) for column in zip(*parts, strict=True)))
        assert found == pytest.approx(expected, rel=1e-9)
    assert_equal(model, whole)


def tokens(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    parts = []
    for counted in (5, 1, 3):
        labels = np.full(6, -100)
        labels[:counted] = rng.integers(0, 2, size=counted)
        parts.append((TORCH.array(rng.normal(size=(6, 3)), "float64"), torch.tensor(labels, device=DEVICE)))
    return parts


def test_items_weigh_micro_batches_by_their_tokens():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(DEVICE, torch.float64)
    whole = copy.deepcopy(model)

    def confident(prediction: Any, target: Any) -> Any:
        return prediction[target != -100].square().mean()

    terms = [pn.Term(confident, weight=0.5, scope="mean")]
    step = stepper(model, *terms, base=cross_entropy, items=lambda target: (target != -100).sum())
    unsplit = stepper(whole, *terms, base=cross_entropy)
    for index in range(3):
        parts = tokens(index)
        found = step.accumulate(parts)
        expected = unsplit(*(torch.cat(column) for column in zip(*parts, strict=True)))
        assert found == pytest.approx(expected, rel=1e-6)
    assert_equal(model, whole, rtol=1e-6)


def test_terms_of_scope_step_run_once_a_step():
    calls: list[float] = []

    def counted(params: Any) -> Any:
        calls.append(1.0)
        return pn.l2(params)

    stepper(network(), pn.Term(counted)).accumulate(batches(4, 0))
    assert len(calls) == 1


def test_terms_of_scope_step_alone_add_nothing_to_later_micro_batches():
    weight = torch.ones(2, requires_grad=True)
    step = Accumulation(pn.Pipeline([pn.Term(pn.l2, inputs="params")]))
    losses = [(weight * x).sum() + step.add({"params": [weight]}, MicroBatch(2)) for x in (1.0, 2.0)]
    assert [loss.item() for loss in losses] == [4.0, 4.0]
    assert step.finish().metrics() == {"l2": 2.0, "l2_weighted": 2.0, "total": 2.0}


def test_parameters_are_known_under_any_name():
    model, reference = network(), network()
    term = pn.Term(pn.l2, name="filters", weight=0.1, inputs="filters")
    metrics = stepper(model, term).accumulate([(x, y, {"filters": model[0].weight}) for x, y in batches(4, 0)])
    assert metrics["filters"] == pytest.approx(pn.l2(reference[0].weight).item())


def test_a_selection_of_parameters_counts_once():
    model, reference = network(), network()
    term = pn.Term(pn.l2, name="first", weight=0.1, inputs="first")
    metrics = stepper(model, term).accumulate([(x, y, {"first": pn.select(model, "0.*")}) for x, y in batches(4, 0)])
    assert metrics["first"] == pytest.approx(pn.l2(reference[0].parameters()).item())


def test_leaves_that_require_a_gradient_are_not_taken_for_parameters():
    term = pn.Term(pn.l2, name="slope", inputs="points")
    parts = [(x, y, {"points": x.clone().requires_grad_()}) for x, y in batches(2, 0)]
    metrics = stepper(network(), term).accumulate(parts)
    assert metrics["slope"] == pytest.approx(sum(pn.l2(x).item() for x, _, _ in parts))


def test_an_own_function_without_a_scope_raises_where_it_matters():
    term = pn.Term(lambda prediction: prediction.std(), name="spread")
    step = stepper(network(), term)
    step(*batches(1, 0, rows=4)[0])
    with pytest.raises(
        pn.OptionError, match='spread: scope=None; expected "mean", "sum" or "step": .* 2 micro-batches'
    ):
        step.accumulate(batches(2, 0))
    stepper(network(), term.replace(scope="mean")).accumulate(batches(2, 0))
    stepper(network(), term.replace(enabled=False)).accumulate(batches(2, 0))


def test_schedules_and_every_go_by_optimizer_steps():
    step = stepper(network(), DECAY, SIZE.replace(every=2), schedules={"decay": pn.schedules.linear(0.0, 0.2, steps=3)})
    seen = [step.accumulate(batches(2, index)) for index in range(3)]
    assert [metrics["decay_weighted"] / metrics["decay"] for metrics in seen] == pytest.approx([0.0, 0.1, 0.2])
    assert ["size" in metrics for metrics in seen] == [True, False, True]


def test_a_term_with_a_scheduled_weight_is_scaled_as_well():
    scheduled = DECAY.replace(weight=pn.schedules.constant(0.1))
    found = stepper(network(), scheduled, SIZE.replace(weight=pn.schedules.constant(0.01), scope="mean"))
    fixed = stepper(network(), DECAY, SIZE.replace(scope="mean"))
    assert found.accumulate(batches(3, 0)) == pytest.approx(fixed.accumulate(batches(3, 0)))


def test_state_moves_once_a_step():
    term = pn.EMA(SPREAD, decay=0.5)
    split, unsplit = stepper(network(), term), stepper(network(), term)
    for index in range(3):
        parts = batches(4, index)
        found = split.accumulate(parts)
        expected = unsplit(*(torch.cat(column) for column in zip(*parts, strict=True)))
        assert found == pytest.approx(expected, rel=1e-9)
    before = split.loss.state["spread"]["before"]
    torch.testing.assert_close(before, unsplit.loss.state["spread"]["before"], rtol=1e-9, atol=0)


def test_state_that_is_no_number_is_that_of_the_last_micro_batch():
    def counting(prediction: Any, state: Any = None) -> Any:
        state = state or {"calls": 0, "label": "", "sizes": [0.0]}
        size = prediction.detach().abs().sum().item()
        return pn.Evaluation(
            prediction.sum(), state={"calls": state["calls"] + 1, "label": "seen", "sizes": [state["sizes"][0] + size]}
        )

    step = stepper(network(), pn.Term(counting, scope="sum"))
    parts = batches(2, 0)
    sizes = [step.model(x).abs().sum().item() for x, _ in parts]
    step.accumulate(parts)
    assert step.loss.state["counting"] == {"calls": 1, "label": "seen", "sizes": [pytest.approx(sum(sizes) / 2)]}


def test_own_metrics_are_averaged():
    def measured(prediction: Any) -> Any:
        return prediction.mean(), {"largest": prediction.max(), "rows": len(prediction)}

    step = stepper(network(), pn.Term(measured, scope="mean"))
    parts = batches(2, 0)
    largest = [step.model(x).max().item() for x, _ in parts]
    metrics = step.accumulate(parts)
    assert metrics["measured/largest"] == pytest.approx(sum(largest) / 2)
    assert metrics["measured/rows"] == 2


def test_activations_of_earlier_micro_batches_are_freed():
    import weakref

    alive: list[Any] = []

    def watching(prediction: Any) -> Any:
        product = prediction * 2.0
        alive.append(weakref.ref(product))
        return product.square().sum()

    stepper(network(), pn.Term(watching, scope="sum")).accumulate(batches(2, 0))
    assert alive[0]() is None


@pytest.mark.parametrize("count", [1, 4])
def test_a_scaler_changes_nothing_but_the_range(count: int):
    model, reference = network(), network()
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    step = stepper(model, DECAY, SIZE, scaler=scaler, max_norm=0.5)
    plain = stepper(reference, DECAY, SIZE, max_norm=0.5)
    for index in range(3):
        assert step.accumulate(batches(count, index)) == pytest.approx(plain.accumulate(batches(count, index)))
    assert_equal(model, reference)


def test_a_step_of_infinite_gradients_is_skipped_by_the_scaler():
    model = network()
    before = copy.deepcopy(model)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    step = stepper(model, DECAY.replace(weight=1e307), scaler=scaler)
    step.accumulate(batches(2, 0))
    assert_equal(model, before)
    assert scaler.get_scale() < 1024.0


@pytest.mark.parametrize("count", [1, 4])
def test_closures_equal_a_loop_by_hand(count: int):
    model, reference = network(), network()
    options = {"lr": 0.5, "max_iter": 4, "line_search_fn": "strong_wolfe"}
    step = stepper(model, DECAY, SIZE, optimizer=torch.optim.LBFGS(model.parameters(), **options), closure=True)
    optimizer = torch.optim.LBFGS(reference.parameters(), **options)
    for index in range(3):
        parts = batches(count, index)
        losses = []

        def closure(parts: Any = parts, losses: Any = losses) -> Any:
            optimizer.zero_grad()
            loss = 0.1 * pn.l2(reference.parameters())
            for x, y in parts:
                loss = loss + mse_loss(reference(x), y) / count + 0.01 * pn.l1(reference(x))
            loss.backward()
            losses.append(loss.item())
            return loss

        metrics = step.accumulate(parts)
        optimizer.step(closure)
        assert len(losses) > 1
        assert metrics["loss"] == pytest.approx(losses[0], rel=1e-9)
    assert_equal(model, reference)


def test_state_moves_once_however_often_a_closure_runs():
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    step = stepper(model, pn.EMA(DECAY, decay=0.5), optimizer=optimizer, closure=True)
    size = pn.l2(model.parameters()).item()
    step(*batches(1, 0)[0])
    assert step.loss.state["decay"]["before"].item() == pytest.approx(size)
    assert step.output["decay"].value.item() == pytest.approx(size)


def test_a_scaler_and_a_closure_raise():
    with pytest.raises(pn.OptionError, match="closure=True; expected False with a scaler"):
        stepper(network(), closure=True, scaler=torch.amp.GradScaler(DEVICE))


def test_no_micro_batches_raise():
    with pytest.raises(pn.InputError, match="accumulate was given no micro-batches"):
        stepper(network()).accumulate([])


@pytest.mark.parametrize(
    ("batch", "factors"),
    [
        (MicroBatch(), {"mean": 1.0, "sum": 1.0, "step": 1.0}),
        (MicroBatch(4), {"mean": 0.25, "sum": 1.0, "step": 1.0}),
        (MicroBatch(4, ranks=2, applied=0.5), {"mean": 0.25, "sum": 2.0, "step": 1.0}),
        (MicroBatch(4, ranks=2, applied=0.125), {"mean": 1.0, "sum": 8.0, "step": 4.0}),
        (MicroBatch(4, ranks=2, part=0.3, applied=0.5), {"mean": 0.6, "sum": 2.0, "step": 1.0}),
    ],
)
def test_factors_undo_what_the_trainer_applies(batch: MicroBatch, factors: dict[str, float]):
    assert {scope: batch.factor(scope) for scope in ("mean", "sum", "step")} == pytest.approx(factors)


def test_an_unfinished_step_is_forgotten():
    accumulation = Accumulation(pn.Pipeline([pn.Term(pn.l1, inputs="x")]))
    accumulation.add({"x": np.ones(2)}, MicroBatch(2))
    accumulation.start()
    for x in (1.0, 2.0):
        accumulation.add({"x": np.array([x])}, MicroBatch(2))
    assert accumulation.finish().metrics()["l1"] == 3.0


def test_a_discarded_micro_batch_counts_nowhere():
    step = Accumulation(pn.Pipeline([DECAY, SIZE, pn.EMA(SPREAD, 0.5)]))
    parameters = [nn.Parameter(torch.ones(2, dtype=torch.float64))]

    def add(x: float, measure: Any = None) -> float:
        given = {"params": parameters, "prediction": torch.full((2,), x, dtype=torch.float64)}
        return step.add(given, MicroBatch(2), measure=measure).item()

    first = add(3.0, lambda out, scopes: dataclasses.replace(out, total_grad_norm=1.0))
    step.discard()
    # Parameters count with the one that comes first now.
    assert add(3.0) == first
    add(100.0)
    step.discard()
    add(5.0)
    out = step.finish()
    assert out.metrics()["decay"] == 2.0
    assert out.metrics()["size"] == 16.0
    assert float(out.state["spread"]["before"]) == (9 + 25) / 2
    # Nothing that was measured stays, either.
    assert out.total_grad_norm is None


def test_unknown_weights_raise_in_every_micro_batch():
    accumulation = Accumulation(pn.Pipeline([pn.Term(pn.l1, inputs="x"), pn.Term(pn.l2, inputs="params")]))
    inputs = {"x": np.ones(2), "params": np.ones(2)}
    with pytest.raises(pn.InputError, match='"l3"'):
        accumulation.add(inputs, MicroBatch(2), weights={"l3": 1.0})
    accumulation.add(inputs, MicroBatch(2), weights={"l2": 3.0})
    accumulation.add(inputs, MicroBatch(2), weights={"l2": 3.0, "l1": 0.5})
    assert accumulation.finish()["l2"].contribution == 6.0


def test_state_is_averaged_over_ranks_by_the_adapter():
    accumulation = Accumulation(pn.Pipeline([pn.EMA(pn.Term(pn.l2, inputs="x", scope="mean"), decay=0.5)]))
    accumulation.add({"x": np.array([2.0])}, MicroBatch(1, ranks=2, applied=0.5))
    output = accumulation.finish(base=np.array(1.0), average=lambda array: array / 2)
    assert output.state["l2"]["before"] == 2.0
    assert output.metrics() == {"l2": 4.0, "l2_weighted": 4.0, "base_loss": 1.0, "total": 5.0}


def test_a_normalized_sum_is_averaged_over_micro_batches() -> None:
    pipeline = pn.Pipeline([pn.Normalized(pn.Term(pn.l2, inputs="x", name="size"))])
    step = Accumulation(pipeline)
    for value in (1.0, 2.0, 3.0, 4.0):
        step.add({"x": torch.tensor([value])}, MicroBatch(4))
    assert step.finish()["size"].value == 1.0


class TestParametersWithConstants:
    """Such as the distance from the weights that training started from."""

    ANCHORED = pn.Term(pn.consistency, name="anchored", inputs=("w", "anchor"), options={"reduction": "sum"})

    @pytest.mark.parametrize("inputs", [("w", "anchor"), ("params.0", "anchor"), ("layers.w", "anchor")])
    def test_a_sum_asks_for_its_scope(self, inputs: tuple[str, str]) -> None:
        model = network()
        term = self.ANCHORED.replace(inputs=inputs)
        weight = model[0].weight
        given = {"w": weight, "layers": {"w": weight}, "anchor": torch.zeros_like(weight)}
        offered = {name: part for name, part in given.items() if name in {path.partition(".")[0] for path in inputs}}
        parts = [(x, y, offered) for x, y in batches(2, 0)]
        stepper(model, term).accumulate(parts[:1])
        with pytest.raises(pn.OptionError, match="anchored: scope=None; .* neither the function nor its inputs say"):
            stepper(model, term).accumulate(parts)

    def test_with_one_it_counts_once(self) -> None:
        model = network()
        given = {"w": model[0].weight, "anchor": torch.zeros_like(model[0].weight)}
        expected = pn.l2(model[0].weight).item()
        step = stepper(model, self.ANCHORED.replace(scope="step"))
        metrics = step.accumulate([(x, y, given) for x, y in batches(4, 0)])
        assert metrics["anchored"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "base",
    [
        nn.MSELoss(reduction="sum"),
        functools.partial(mse_loss, reduction="sum"),
        pn.Term(lambda prediction, target: mse_loss(prediction, target, reduction="sum"), name="own", scope="sum"),
        pn.Term(nn.MSELoss(reduction="sum"), inputs=("prediction", "target")),
    ],
    ids=["module", "partial", "scope", "term"],
)
def test_a_base_that_adds_up_is_added_up(base: Any):
    model, whole = network(), network()
    parts = batches(4, 0)
    found = stepper(model, DECAY, base=base).accumulate(parts)
    expected = stepper(whole, DECAY, base=base)(*(torch.cat(column) for column in zip(*parts, strict=True)))
    assert found == pytest.approx(expected, rel=1e-9)
    assert_equal(model, whole)


X, Y = torch.ones(2, 3), torch.ones(2, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((X, Y), "micro-batch 0 of accumulate is of type Tensor; expected (x, y), or (x, y, inputs)"),
        ([X], "micro-batch 0 of accumulate is of type Tensor"),
        ([(X, Y), (X, Y, None)], "micro-batch 1 of accumulate is a tuple of Tensor, Tensor, NoneType"),
        ([(X, Y, X)], "a tuple of Tensor, Tensor, Tensor"),
        ([(X,)], "a tuple of Tensor;"),
        ([{"x": X, "y": Y}], "micro-batch 0 of accumulate is of type dict"),
        ({"x": X, "y": Y}, "accumulate was given a value of type dict; expected a list of (x, y)"),
        (X, "accumulate was given a value of type Tensor; expected a list of (x, y)"),
        (3, "accumulate was given a value of type int"),
    ],
)
def test_what_is_no_list_of_micro_batches_raises_before_anything_runs(given: Any, message: str):
    step = stepper(network())
    with pytest.raises(pn.InputError, match=re.escape(message)):
        step.accumulate(given)
    assert step.count == 0
    assert all(p.grad is None for p in step.model.parameters())


@pytest.mark.parametrize("option", [{"items": 3}, {"scaler": 3}, {"schedules": 3}, {"closure": "yes"}], ids=str)
def test_wrong_options_raise_at_construction(option: dict[str, Any]):
    (name,) = option
    with pytest.raises(pn.OptionError, match=f"{name}=.*; expected"):
        stepper(network(), **option)
