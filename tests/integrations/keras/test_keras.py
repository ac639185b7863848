"""Selection and capture on Keras, on the backend that KERAS_BACKEND names; JAX without one."""

import os
from typing import Any

import numpy as np
import pytest

import penalties as pn

os.environ.setdefault("KERAS_BACKEND", "jax")
keras: Any = pytest.importorskip("keras")

X = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
DECAY = pn.Pipeline([pn.Term(pn.l2, name="decay", inputs="params")])


class Block(keras.layers.Layer):
    def __init__(self, more: str = "more", **options: Any) -> None:
        super().__init__(**options)
        self.inner = keras.layers.Dense(3, name="inner")
        self.more = [keras.layers.Dense(3, name=more)]

    def call(self, x: Any) -> Any:
        return self.more[0](self.inner(x))


def network() -> Any:
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3, name="hidden", activation="relu")(inputs)
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    return keras.Model(inputs, keras.layers.Dense(2, name="head")(Block(name="block")(hidden)))


def test_trainable_variables_are_selected_without_statistics() -> None:
    model = network()
    assert list(pn.select(model, types=keras.layers.Dense, ndim=2)) == [
        "hidden.kernel",
        "block.inner.kernel",
        "block.more.kernel",
        "head.kernel",
    ]
    assert list(pn.select(model, "norm.*")) == ["norm.gamma", "norm.beta"]
    model.get_layer("block").trainable = False
    assert not any("block" in name for name in pn.select(model))


def test_the_innermost_layer_owns_a_variable_also_in_a_sequential_model() -> None:
    inner = keras.Sequential([keras.layers.Dense(3, name="first"), keras.layers.Dense(3, name="second")], name="inner")
    layers = [
        keras.Input((4,)),
        inner,
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dense(1, name="last"),
    ]
    model = keras.Sequential(layers, name="outer")
    names = [name.rpartition("outer.")[2] for name in pn.select(model, types=keras.layers.Dense, ndim=2)]
    assert names == ["inner.first.kernel", "inner.second.kernel", "last.kernel"]
    one = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    assert len(pn.select(one, types=keras.layers.Dense)) == 2
    with pytest.raises(pn.OptionError, match="expected classes of modules that have parameters: Dense"):
        pn.select(one, types=keras.Sequential)


def test_a_selection_reads_the_model_as_it_is_now() -> None:
    model = network()
    selected = pn.select(model, "head.kernel")
    model.get_layer("head").kernel.assign(np.full((3, 2), 2.0))
    assert DECAY.total(params=selected) == 24.0


def test_outputs_are_captured_by_name_and_layers_are_left_as_they_were() -> None:
    model = network()
    own = keras.regularizers.L2(0.1)
    model.get_layer("head").activity_regularizer = own
    with pn.capture(model, ["block.*", "head"]) as activations:
        prediction = model(X)
        assert len(model.losses) == 3
    assert list(activations) == ["block.inner", "block.more", "head"]
    assert keras.ops.all(activations["head"] == prediction)
    assert model.get_layer("head").activity_regularizer is own
    model(X)
    assert len(model.losses) == 1
    with pytest.raises(pn.OptionError, match='such as "head"'), pn.capture(model, "haed"):
        pass
    with pytest.raises(pn.OptionError, match="modules that are called inside the block"), pn.capture(model, "head"):
        pass


def test_gradients_reach_what_is_selected_and_captured() -> None:
    model = network()
    if keras.backend.backend() == "jax":
        import jax

        def loss(trainable: Any) -> Any:
            with pn.capture(model, "hidden") as activations:
                model.stateless_call(trainable, [v.value for v in model.non_trainable_variables], X)
            return DECAY.total(params=activations)

        grads = jax.jit(jax.grad(loss))([v.value for v in model.trainable_variables])
        found = [np.asarray(g) for g in grads]
    else:
        with pn.capture(model, "hidden") as activations:
            model(X)
        DECAY.total(params=activations).backward()
        found = [np.zeros(1) if v.value.grad is None else v.value.grad.numpy() for v in model.trainable_variables]
    assert np.abs(found[0]).sum() > 0
    assert not any(np.abs(gradient).sum() for gradient in found[2:])


def test_layers_without_weights_are_captured_beside_the_others() -> None:
    inputs = keras.Input((4,))
    hidden = keras.layers.ReLU(name="act")(keras.layers.Dense(3, name="hidden")(inputs))
    inner = keras.Sequential([keras.layers.Dense(2, name="dense"), keras.layers.ReLU(name="act")], name="inner")
    model = keras.Model(inputs, inner(hidden))
    with pn.capture(model, "*act") as activations:
        prediction = model(X)
    assert list(activations) == ["act", "inner.act"]
    assert keras.ops.all(activations["inner.act"] == prediction)


def test_two_layers_of_one_name_cannot_be_captured() -> None:
    block = Block(more="inner", name="block")
    inputs = keras.Input((4,))
    model = keras.Model(inputs, block(inputs))
    with (
        pytest.raises(pn.OptionError, match='capture: model="block.inner"; expected one layer of each name'),
        pn.capture(model, "block.inner"),
    ):
        pass


def test_a_model_that_is_not_built_cannot_be_selected_from() -> None:
    with pytest.raises(pn.OptionError, match="call or build the model first"):
        pn.select(keras.Sequential([keras.layers.Dense(2)]))
