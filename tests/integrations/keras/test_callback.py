"""The callback inside `fit`: parameters of a loop by hand, weights that move in a compiled step, logs, resuming."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

import penalties as pn
from penalties import telemetry
from penalties.integrations.keras import ActivityPenalty, PenaltiesCallback, Penalty

from . import cases

# Of Keras's own conversion of its variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")

ON_JAX = keras.config.backend() == "jax"


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("accumulation", [None, 2, 4, 8])
def test_ten_steps_end_where_a_loop_by_hand_ends(accumulation: int | None) -> None:
    model = cases.model(accumulation)
    batches = 10 * (accumulation or 1)
    expected, steps = cases.by_hand(model.get_weights(), batches, accumulation or 1)
    history = cases.fit(model, batches, callbacks=[PenaltiesCallback()])
    assert_equal(model.get_weights(), expected)
    assert history["loss"][0] == pytest.approx(np.mean([step["total"] for step in steps]), rel=1e-5)
    for name, weight in {"decay": cases.RISE, "level": cases.FALL, "l1": lambda _: 0.1}.items():
        weights = [weight(batch // (accumulation or 1)) for batch in range(batches)]
        values = [step[name] for step in steps]
        assert history[f"loss/{name}"][0] == pytest.approx(np.mean(values), rel=1e-5)
        assert history[f"loss/{name}/weighted"][0] == pytest.approx(np.mean(np.multiply(weights, values)), rel=1e-5)
        assert history[f"weight/{name}"][0] == pytest.approx(np.mean(weights), rel=1e-5)


class Interrupted(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise KeyboardInterrupt


def test_a_run_that_keras_restores_continues_exactly(tmp_path: Path) -> None:
    whole = cases.model()
    history = cases.fit(whole, 3, epochs=4, callbacks=[PenaltiesCallback()])
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    with pytest.raises(KeyboardInterrupt):
        cases.fit(cases.model(), 3, epochs=4, callbacks=[PenaltiesCallback(), backup, Interrupted()])
    resumed = cases.model()
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    rest = cases.fit(resumed, 3, epochs=4, callbacks=[PenaltiesCallback(), backup])
    for one, other in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        assert np.array_equal(one, other)
    assert {name: values[2:] for name, values in history.items()} == rest


def test_a_run_from_a_saved_model_continues_exactly(tmp_path: Path) -> None:
    whole, half = cases.model(), cases.model()
    cases.fit(whole, 3, epochs=4, callbacks=[PenaltiesCallback()])
    saved = keras.callbacks.ModelCheckpoint(str(tmp_path / "model.keras"))
    cases.fit(half, 3, epochs=2, callbacks=[PenaltiesCallback(), saved])
    resumed = keras.models.load_model(tmp_path / "model.keras")
    history = cases.fit(resumed, 3, epochs=4, initial_epoch=2, callbacks=[PenaltiesCallback()])
    for one, other in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        assert np.array_equal(one, other)
    assert history["weight/decay"][-1] == pytest.approx(cases.RISE(9.0), rel=1e-6)


def scheduled(fn: Any) -> Any:
    """A model of one layer, of whose kernel the penalty has a weight that moves at every step."""
    keras.utils.set_random_seed(0)
    penalty = Penalty(fn, pn.schedules.warmup(1.0, 20))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_regularizer=penalty)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.skipif(not ON_JAX, reason="of JAX")
def test_a_compiled_step_is_traced_once_while_weights_move() -> None:
    calls: list[int] = []

    def counted(x: Any) -> Any:
        calls.append(len(calls))
        return abs(x).sum()

    model = scheduled(counted)
    cases.fit(model, 1, callbacks=[PenaltiesCallback()])
    before = len(calls)
    cases.fit(model, 9, callbacks=[PenaltiesCallback()])
    assert len(calls) == before


@pytest.mark.skipif(ON_JAX, reason="of PyTorch")
def test_a_compiled_step_of_pytorch_is_compiled_once_while_weights_move() -> None:
    model, reference = scheduled("l1"), scheduled("l1")
    callback = PenaltiesCallback()
    cases.fit(model, 2, callbacks=[callback])
    # As with jit_compile=True, but for the backend of the compiler, which takes a minute.
    model.train_function = torch.compile(lambda batch: model.train_step(batch[0]), backend="eager")
    cases.fit(model, 2, callbacks=[callback])
    with torch._dynamo.config.patch(error_on_recompile=True):
        history = cases.fit(model, 6, callbacks=[callback])
    for batches in (2, 2, 6):
        expected = cases.fit(reference, batches, callbacks=[PenaltiesCallback()])
    assert_equal(model.get_weights(), reference.get_weights())
    assert history == {name: pytest.approx(values, rel=1e-5) for name, values in expected.items()}


def test_a_step_that_was_compiled_without_the_callback_is_logged_with_it() -> None:
    model = cases.model()
    with pytest.warns(UserWarning, match="nothing moves it; pass callbacks"):
        cases.fit(model, 2)
    assert cases.fit(model, 2, callbacks=[PenaltiesCallback()])["loss/decay"][0] > 1


def test_validation_is_not_logged_and_evaluation_has_the_weights_of_its_step() -> None:
    model, alone = cases.model(), cases.model()
    x, y = cases.data(5)
    history = cases.fit(model, 5, epochs=2, validation_data=(x, y), callbacks=[PenaltiesCallback()])
    without = cases.fit(alone, 5, epochs=2, callbacks=[PenaltiesCallback()])
    assert {name: values for name, values in history.items() if name != "val_loss"} == without
    # The step after the last, at the weights of which the schedules end.
    found = model.evaluate(x, y, batch_size=20, verbose=0, callbacks=[PenaltiesCallback()])
    hidden = np.tanh(x @ model.get_weights()[0] + model.get_weights()[1])
    deeper = np.tanh(hidden @ model.get_weights()[2] + model.get_weights()[3])
    base = np.square(model.predict(x, verbose=0) - y).mean()
    decay = sum(np.square(model.get_weights()[index]).sum() for index in (0, 2))
    bias = float(pn.smooth_l1(model.get_weights()[5], delta=0.5))
    expected = base + 0.5 * decay + 0.1 * np.abs(deeper).sum() / 20 + 0.2 * bias
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_sink_sees_each_step_once() -> None:
    seen: list[Any] = []

    def listen(event: str, measurements: Any, metadata: Any) -> None:
        seen.append((metadata["step"], metadata["output"].metrics(style="slash")))

    model = cases.model()
    start = model.get_weights()
    handler = telemetry.attach(listen, ("pipeline.stop",))
    try:
        history = cases.fit(model, 4, callbacks=[PenaltiesCallback()])
    finally:
        telemetry.detach(handler)
    _, steps = cases.by_hand(start, 4)
    assert [step for step, _ in seen] == [0, 1, 2, 3]
    for (step, metrics), expected in zip(seen, steps, strict=True):
        assert metrics["loss/decay"] == pytest.approx(expected["decay"], rel=1e-5)
        assert metrics["loss/level/weighted"] == pytest.approx(cases.FALL(step) * expected["level"], rel=1e-5)
    unheard = cases.fit(cases.model(), 4, callbacks=[PenaltiesCallback()])
    assert history == {name: pytest.approx(values, rel=1e-6) for name, values in unheard.items()}


@pytest.mark.skipif(not ON_JAX, reason="Keras runs one step at a time on PyTorch")
def test_steps_that_run_as_one_share_their_weight() -> None:
    model = cases.model(steps_per_execution=2)
    history = cases.fit(model, 4, callbacks=[PenaltiesCallback()])
    assert history["weight/decay"][0] == pytest.approx((cases.RISE(0) + cases.RISE(2)) / 2)


class OfUnknownLength(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        x, y = cases.data(3)
        return zip(np.split(x, 3), np.split(y, 3), strict=True)


# Keras says that the data have ended.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("heard", [False, True])
def test_batches_of_data_without_a_length_are_counted_once(heard: bool) -> None:
    seen: list[int] = []
    expected = cases.fit(cases.model(), 3, epochs=2, callbacks=[PenaltiesCallback()])

    def listen(event: str, measurements: Any, metadata: Any) -> None:
        seen.append(metadata["step"])

    handlers = [telemetry.attach(listen, ("pipeline.stop",))] if heard else []
    batches = torch.utils.data.DataLoader(OfUnknownLength(), batch_size=None)
    try:
        fitted = cases.model().fit(batches, epochs=2, shuffle=False, verbose=0, callbacks=[PenaltiesCallback()])
    finally:
        for handler in handlers:
            telemetry.detach(handler)
    assert seen == ([0, 1, 2, 3, 4, 5] if heard else [])
    assert fitted.history == {name: pytest.approx(values, rel=1e-5) for name, values in expected.items()}


class Passing(keras.callbacks.Callback):
    """Passes data through the model without training."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.predict(cases.data(2)[0], verbose=0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.evaluate(*cases.data(2), verbose=0)


def test_passes_that_do_not_train_are_not_logged() -> None:
    expected = cases.fit(cases.model(), 3, epochs=2, callbacks=[PenaltiesCallback()])
    history = cases.fit(cases.model(), 3, epochs=2, callbacks=[Passing(), PenaltiesCallback()])
    del history["loss"], expected["loss"]  # an evaluation resets the metrics of Keras
    assert history == {name: pytest.approx(values, rel=1e-6) for name, values in expected.items()}


def test_an_activity_of_a_layer_that_is_not_trained_is_logged() -> None:
    frozen = keras.layers.Dense(2, activity_regularizer=ActivityPenalty("l2"), trainable=False)
    model = keras.Sequential([keras.Input((3,)), frozen, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    activity = keras.ops.convert_to_numpy(frozen(cases.data(1)[0]))
    history = cases.fit(model, 1, callbacks=[PenaltiesCallback()])
    assert history["loss/l2"] == [pytest.approx(np.square(activity).sum() / cases.ROWS, rel=1e-5)]


def in_half_precision(scale: float) -> Any:
    keras.utils.set_random_seed(0)
    penalty = Penalty("l2", pn.schedules.warmup(1.0, 4))
    layer = keras.layers.Dense(1, kernel_regularizer=penalty, dtype="mixed_float16")
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=scale), "mse")
    return model


def test_mixed_precision_counts_its_own_steps() -> None:
    weights = cases.fit(in_half_precision(8.0), 2, epochs=3, callbacks=[PenaltiesCallback()])["weight/l2"]
    assert weights == [pytest.approx(weight) for weight in (0.125, 0.625, 1.0)]


def test_batches_whose_step_is_skipped_are_logged() -> None:
    model = in_half_precision(2.0**60)
    kernel, _ = model.get_weights()
    history = cases.fit(model, 3, epochs=2, callbacks=[PenaltiesCallback()])
    assert np.array_equal(model.get_weights()[0], kernel)
    assert history["loss/l2"] == [pytest.approx(np.square(kernel).sum())] * 2


def network(**regularizers: Any) -> Any:
    layer = keras.layers.Dense(2, name="dense", **regularizers)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile("sgd", "mse")
    return model


class TestMistakes:
    def fit(self, model: Any) -> None:
        x, _ = cases.data(2)
        model.fit(x, x[:, :2], verbose=0, callbacks=[PenaltiesCallback()])

    def test_a_model_without_regularizers(self) -> None:
        with pytest.raises(pn.InputError, match="no layer of the model has a Penalty or an ActivityPenalty"):
            self.fit(network(kernel_regularizer=keras.regularizers.L2(0.1)))

    def test_two_terms_of_one_name(self) -> None:
        model = network(kernel_regularizer=Penalty("l2", 0.1), bias_regularizer=Penalty("l2", 0.2))
        with pytest.raises(pn.OptionError, match='model="l2"; expected one kind, function and weight'):
            self.fit(model)
        with pytest.raises(pn.OptionError, match="give one of them another name="):
            self.fit(network(kernel_regularizer=Penalty("l2"), activity_regularizer=ActivityPenalty("l2")))

    def test_a_regularizer_of_weights_for_activities(self) -> None:
        with pytest.raises(pn.OptionError, match="expected an ActivityPenalty as activity_regularizer"):
            self.fit(network(activity_regularizer=Penalty("entropy")))

    def test_a_regularizer_of_activities_for_weights(self) -> None:
        both = ActivityPenalty("entropy")
        for regularizers in ({"kernel_regularizer": both}, {"kernel_regularizer": both, "activity_regularizer": both}):
            with pytest.raises(pn.OptionError, match='model="entropy"; expected a Penalty for weights'):
                PenaltiesCallback().set_model(network(**regularizers))

    def test_a_model_without_an_optimizer(self) -> None:
        model = network(kernel_regularizer=Penalty("l2"))
        model.compile(None, "mse")
        x, _ = cases.data(2)
        with pytest.raises(pn.OptionError, match="optimizer=None; expected a model compiled with an optimizer"):
            model.evaluate(x, x[:, :2], verbose=0, callbacks=[PenaltiesCallback()])

    def test_a_regularizer_that_keras_does_not_track(self) -> None:
        model = network()
        model.get_layer("dense").kernel.regularizer = Penalty("l2")
        with pytest.raises(pn.OptionError, match="expected a regularizer that the layer was made with"):
            self.fit(model)
