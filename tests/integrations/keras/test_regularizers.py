"""Penalties as regularizers: the numbers of the functions, files that bring them back, and clear errors."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import penalties as pn
from penalties.integrations.keras import ActivityPenalty, PenaltiesCallback, Penalty, libraries
from penalties.pipeline.catalogue import BUILT_IN

# Of Keras's own conversion of its variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")

X = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)


def number(x: Any) -> float:
    return float(keras.ops.convert_to_numpy(x))


def takes_one_array(fn: Any) -> bool:
    term = pn.Term(fn)
    return len(term.inputs) == 1 and not term.needs_step and not term.takes_state


ONE_ARRAY = [name for name, fn in BUILT_IN.items() if takes_one_array(fn)]


@keras.saving.register_keras_serializable(package="tests")
def largest(x: Any) -> Any:
    return keras.ops.max(keras.ops.abs(x))


def plain(x: Any) -> Any:
    return abs(x).sum()


@pytest.mark.parametrize("name", ONE_ARRAY)
def test_every_penalty_of_one_array_is_a_regularizer_that_is_made_again_from_its_config(name: str) -> None:
    regularizer = Penalty(name, weight=0.5)
    assert isinstance(regularizer, keras.Regularizer)
    x = keras.ops.convert_to_tensor(X if name != "precomputed" else X[0, 0])
    expected = 0.5 * number(BUILT_IN[name](x))
    again = keras.regularizers.deserialize(keras.regularizers.serialize(regularizer))
    for one in (regularizer, again):
        assert number(one(x)) == pytest.approx(expected)
    assert again.term == regularizer.term


def network() -> Any:
    inputs = keras.Input((3,))
    rise = pn.schedules.chain((pn.schedules.warmup(0.1, 10), 10), pn.schedules.constant(0.1))
    hidden = keras.layers.Dense(
        5,
        name="hidden",
        kernel_regularizer=Penalty(pn.orthogonality, rise, name="rows", options={"mode": "hard"}),
        bias_regularizer=Penalty(largest, 0.3),
        activity_regularizer=ActivityPenalty("entropy", 0.2, options={"mode": "bonus", "logits": True}),
    )(inputs)
    code = keras.layers.Dense(2, activity_regularizer=ActivityPenalty(largest, 0.1, name="top", scope="sum"))(hidden)
    return keras.Model(inputs, code)


@pytest.mark.filterwarnings("ignore:rows. its weight is a schedule")
def test_a_saved_a_loaded_and_a_cloned_model_have_the_same_regularizers(tmp_path: Path) -> None:
    model = network()
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded, cloned = keras.models.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)
    cloned.load_weights(tmp_path / "model.weights.h5")
    for other in (loaded, cloned):
        for one, two in zip(model.layers[1:], other.layers[1:], strict=True):
            assert one.get_config() == two.get_config()
        np.testing.assert_allclose(losses(other), losses(model), rtol=1e-6)
        assert other.layers[1].kernel_regularizer.term == model.layers[1].kernel_regularizer.term


def losses(model: Any) -> Any:
    model(X)
    return [number(loss) for loss in model.losses]


def test_state_is_no_weight_of_the_layer_and_weights_of_other_models_fit() -> None:
    model = network()
    assert [tuple(w.shape) for w in model.get_layer("hidden").get_weights()] == [(3, 5), (5,)]
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(2)])
    other.set_weights(model.get_weights())
    assert model.count_params() == other.count_params()
    np.testing.assert_allclose(other.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-6)


def activity_loss(regularizer: Any, rows: int) -> float:
    layer = keras.layers.Identity(activity_regularizer=regularizer)
    layer(keras.ops.convert_to_tensor(np.tile(X[:1], (rows, 1))))
    return number(layer.losses[0])


@pytest.mark.parametrize("rows", [1, 7])
def test_activities_count_the_same_in_batches_of_every_size(rows: int) -> None:
    row = X[0]
    mean = ActivityPenalty("l2", 0.5, options={"reduction": "mean"})
    assert activity_loss(mean, rows) == pytest.approx(0.5 * np.square(row).mean())
    # A sum is one per example, as for the regularizers of Keras.
    assert activity_loss(ActivityPenalty("l2", 0.5), rows) == pytest.approx(0.5 * np.square(row).sum())
    assert activity_loss(keras.regularizers.L2(0.5), rows) == pytest.approx(0.5 * np.square(row).sum())
    assert activity_loss(ActivityPenalty(largest, scope="mean"), rows) == pytest.approx(np.abs(row).max())
    assert activity_loss(ActivityPenalty(largest, scope="sum"), rows) == pytest.approx(np.abs(row).max() / rows)


def test_an_activity_without_axes_is_not_divided() -> None:
    for scope in ("mean", "sum"):
        layer = keras.layers.Identity(activity_regularizer=ActivityPenalty(largest, scope=scope))
        layer(keras.ops.convert_to_tensor(-2.0))
        assert number(layer.losses[0]) == 2.0


def test_variables_are_inputs_of_penalties_and_pipelines() -> None:
    model = network()
    expected = sum(np.square(array).sum() for array in model.get_weights())
    assert number(pn.l2(model.trainable_variables)) == pytest.approx(expected)
    kernel = model.get_layer("hidden").kernel
    assert number(pn.l1(kernel)) == pytest.approx(np.abs(model.get_weights()[0]).sum())
    out = pn.Pipeline([pn.Term(pn.l2, inputs="params")]).value_and_grad(params=[kernel], wrt="params")
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(out.gradient["params"][0]), 2 * model.get_weights()[0], rtol=1e-6
    )
    with pytest.raises(pn.BackendError, match="for a Keras variable pass its .value"):
        pn.orthogonality(kernel)


def test_selection_and_capture_leave_regularizers_out() -> None:
    model = network()
    assert list(pn.select(model, "hidden*")) == ["hidden.kernel", "hidden.bias"]
    own = model.get_layer("hidden").activity_regularizer
    with pn.capture(model, "hidden*") as activations:
        model(X)
    assert list(activations) == ["hidden"]
    assert model.get_layer("hidden").activity_regularizer is own


def test_a_schedule_that_nothing_moves_is_a_warning_in_a_step() -> None:
    model = network()
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="rows: its weight is a schedule, and nothing moves it") as warned:
        model.fit(X, X[:, :2], verbose=0)
    assert len([one for one in warned if "rows" in str(one.message)]) == 1
    # Once, and not where a callback does.
    model.fit(X, X[:, :2], verbose=0)
    moved = network()
    moved.compile("sgd", "mse")
    moved.fit(X, X[:, :2], verbose=0, callbacks=[PenaltiesCallback()])


@pytest.mark.parametrize("first", ["fit", "evaluate", "recompiled"])
def test_a_fit_without_the_callback_after_one_with_it_is_a_warning(first: str) -> None:
    model = network()
    model.compile("sgd", "mse")
    getattr(model, "evaluate" if first == "evaluate" else "fit")(
        X, X[:, :2], verbose=0, callbacks=[PenaltiesCallback()]
    )
    if first == "recompiled":
        model.compile("sgd", "mse")
    # Neither of these trains.
    model.evaluate(X, X[:, :2], verbose=0)
    model.predict(X, verbose=0)
    with pytest.warns(UserWarning, match="rows: its weight is a schedule, and nothing moves it") as warned:
        model.fit(X, X[:, :2], verbose=0)
    assert len([one for one in warned if "rows" in str(one.message)]) == 1


class Evaluating(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.evaluate(X, X[:, :2], verbose=0, callbacks=[PenaltiesCallback()])


def test_an_evaluation_inside_fit_leaves_the_weights_to_fit() -> None:
    model = network()
    model.compile("sgd", "mse")
    model.fit(X, X[:, :2], epochs=2, verbose=0, callbacks=[Evaluating(), PenaltiesCallback()])


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"fn": "l3"}, 'fn="l3"; expected one of .* l1, l2'),
            ({"fn": "kl_divergence"}, "expected a function of one array; this one has these inputs: p, q"),
            ({"fn": lambda: 1.0, "name": "one"}, "these inputs: none"),
            ({"fn": lambda x, step: x.sum() * step, "name": "one"}, "expected a function without step or state"),
            ({"fn": lambda x: x.sum()}, "a name, since a lambda has none"),
            ({"fn": "l1", "weight": -1.0}, "weight=-1.0; expected a finite number of at least 0"),
            ({"fn": "l1", "weight": np.float32(0.1)}, "expected a number, or a schedule"),
            ({"fn": "l1", "weight": {"kind": "warmp"}}, "did you mean warmup"),
            ({"fn": "l1", "options": {"reducton": "mean"}}, "did you mean reduction"),
            ({"fn": "l1", "options": {"reduction": "avg"}}, 'reduction="avg"'),
        ],
    )
    @pytest.mark.parametrize("kind", [Penalty, ActivityPenalty])
    def test_wrong_arguments(self, kind: Any, arguments: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=message):
            kind(**arguments)

    def test_a_function_that_does_not_say_how_it_adds_up_over_the_batch(self) -> None:
        with pytest.raises(pn.OptionError, match='plain: scope=None; expected "mean" or "sum"'):
            ActivityPenalty(plain)
        with pytest.raises(pn.OptionError, match='scope="step"; expected "mean" or "sum"'):
            ActivityPenalty(plain, scope="step")

    def test_a_regularizer_of_activities_for_weights(self) -> None:
        layer = keras.layers.Dense(2, kernel_regularizer=ActivityPenalty("l2"))
        layer.build((None, 3))
        with pytest.raises(pn.OptionError, match="ActivityPenalty is an activity_regularizer; for weights use Penalty"):
            _ = layer.losses

    def test_what_cannot_be_saved(self) -> None:
        with pytest.raises(pn.OptionError, match="decorate it with keras.saving.register_keras_serializable"):
            Penalty(plain).get_config()
        with pytest.raises(pn.OptionError, match="l1: weight=.*; expected a schedule of penalties.schedules"):
            Penalty("l1", lambda step: 0.1 * step).get_config()

    @pytest.mark.parametrize("fn", ["os:system", "tests>smallest", None])
    def test_files_bring_nothing_but_penalties_and_registered_functions(self, fn: Any) -> None:
        with pytest.raises(pn.OptionError, match="import the module that registers it first"):
            Penalty.from_config({"fn": fn, "weight": 1.0})
        assert Penalty("os.path:abspath").term.name == "abspath"

    def test_without_keras(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "keras", None)
        with pytest.raises(pn.MissingLibraryError, match=r'pip install "penalties\[keras\]"'):
            libraries.keras_for("Penalty")

    @pytest.mark.parametrize("name", ["Penalty", "ActivityPenalty", "PenaltiesCallback"])
    def test_on_a_backend_without_penalties(self, name: str) -> None:
        code = f"from penalties.integrations.keras import {name}"
        environment = {**os.environ, "KERAS_BACKEND": "numpy"}
        result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert 'Keras runs on its backend "numpy"; expected "jax" or "torch"' in result.stderr

    def test_a_name_that_is_not_there(self) -> None:
        with pytest.raises(ImportError, match="Penality"):
            from penalties.integrations.keras import Penality  # noqa: F401
