"""Selection and auxiliary losses on Equinox."""

from typing import Any

import numpy as np
import pytest

import penalties as pn

eqx: Any = pytest.importorskip("equinox")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402


class Network(eqx.Module):
    first: Any
    norm: Any
    layers: list[Any]
    scale: float
    steps: Any

    def __init__(self) -> None:
        keys = jax.random.split(jax.random.key(0), 2)
        self.first = eqx.nn.Linear(4, 3, key=keys[0])
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch")
        self.layers = [eqx.nn.MLP(3, 2, 3, 1, key=keys[1]), jax.nn.relu]
        self.scale = 1.0
        self.steps = jnp.arange(3)


WEIGHTS = ["first.weight", "layers.0.layers.0.weight", "layers.0.layers.1.weight"]
DECAY = pn.Pipeline([pn.Term(pn.l2, name="decay", inputs="params")])


@pytest.mark.parametrize("model", [Network(), eqx.nn.make_with_state(Network)()[0]], ids=["whole", "without state"])
def test_floating_arrays_are_selected_without_statistics(model: Any) -> None:
    names = list(pn.select(model))
    assert names == [
        "first.weight",
        "first.bias",
        "norm.weight",
        "norm.bias",
        "layers.0.layers.0.weight",
        "layers.0.layers.0.bias",
        "layers.0.layers.1.weight",
        "layers.0.layers.1.bias",
    ]
    assert list(pn.select(model, types=eqx.nn.Linear, exclude="*.bias")) == WEIGHTS
    assert list(pn.select(model, ndim=2)) == WEIGHTS


@jax.tree_util.register_pytree_node_class
class Plain:
    """A class that does not say how its parts are reached."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def tree_flatten(self) -> Any:
        return (self.array,), None

    @classmethod
    def tree_unflatten(cls, aux: Any, parts: Any) -> Any:
        return cls(*parts)


class Holder(eqx.Module):
    plain: Plain


def test_modules_in_a_nest_are_selected_without_statistics_and_equal_names_are_two_parameters() -> None:
    pair = {"a": Network(), "b": Network()}
    weights = [f"{side}.{name}" for side in "ab" for name in WEIGHTS]
    assert list(pn.select(pair, types=eqx.nn.Linear, exclude="*.bias")) == weights
    assert len(pn.select(pair)) == 16
    assert list(pn.select(Holder(Plain(jnp.ones(2))), types=Holder)) == ["plain.0"]


def test_a_term_over_a_selection_has_a_gradient_inside_a_compiled_function() -> None:
    model = Network()
    grads = eqx.filter_jit(eqx.filter_grad(lambda model: DECAY.total(params=pn.select(model, "first.weight"))))(model)
    np.testing.assert_allclose(grads.first.weight, 2 * model.first.weight, rtol=1e-6)
    np.testing.assert_array_equal(grads.first.bias, np.zeros(3))


def test_a_pattern_that_matches_nothing_shows_near_names() -> None:
    with pytest.raises(pn.OptionError, match='such as "first.weight"'):
        pn.select(Network(), "frist.weight")


def test_activations_are_for_the_model_to_return() -> None:
    with pytest.raises(pn.OptionError, match="elsewhere return activations from the model"):
        pn.capture(Network(), "first")
