"""Selection, capture and auxiliary losses on Flax NNX."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import penalties as pn

nnx: Any = pytest.importorskip("flax.nnx")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax.training.train_state import TrainState  # noqa: E402

X = jnp.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)


class Block(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.linear, self.norm = nnx.Linear(4, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.norm(self.linear(x))
        pn.auxiliary("router", jnp.mean(x**2))
        self.sow(nnx.Intermediate, "gate", x * 2)
        return x


class Network(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.head = nnx.Linear(4, 2, rngs=rngs)
        self.tied = self.head
        self.drop = nnx.Dropout(0.0, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.tied(self.drop(self.head(x) @ jnp.ones((2, 4), "float32")))


DECAY = pn.Pipeline([pn.Term(pn.l2, name="decay", inputs="params")])


def test_parameters_are_selected_without_statistics_and_tied_ones_once() -> None:
    names = list(pn.select(Network()))
    assert len(names) == 10
    assert {name for name in names if "norm" in name} == {
        f"blocks.{i}.norm.{n}" for i in (0, 1) for n in ("bias", "scale")
    }
    assert not any("tied" in name for name in names)
    assert list(pn.select(Network(), types=nnx.Linear, ndim=2)) == [
        "blocks.0.linear.kernel",
        "blocks.1.linear.kernel",
        "head.kernel",
    ]


class Scale(nnx.Pytree):
    def __init__(self) -> None:
        self.factor = nnx.Param(jnp.ones(3))


class Pair(NamedTuple):
    w: Any
    b: Any


class Containers(nnx.Module):
    """Parameters in everything that may hold some."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.linear, self.norm, self.scale = nnx.Linear(2, 2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs), Scale()
        self.several = nnx.data([nnx.Linear(2, 2, rngs=rngs), nnx.Param(jnp.ones(1))])
        self.deep = nnx.data({"a": {"b": nnx.Param(jnp.ones(3)), "tied": self.linear.kernel}})
        self.fixed = nnx.data((nnx.Param(jnp.ones(2)), nnx.BatchStat(jnp.ones(2))))
        self.pair = nnx.data(Pair(self.linear.kernel, nnx.Param(jnp.ones(4))))
        self.inside = nnx.List([nnx.Param(jnp.ones(5))])
        self.array = nnx.data(jnp.ones(6))


def test_every_param_that_flax_finds_is_selected_wherever_it_is() -> None:
    model = Containers()
    by_flax = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    assert set(pn.select(model)) == by_flax
    assert {"scale.factor", "several.0.kernel", "several.1", "deep.a.b", "fixed.0", "pair.b", "inside.0"} < by_flax
    # Each name of a tied one is known; what is in a plain container belongs to the module around it.
    tied = next(line for line in repr(pn.select(model)).splitlines() if "also" in line)
    assert tied.split() == ["deep.a.tied", "(2,", "2)", "4", "Containers", "also", "linear.kernel,", "pair.w"]
    assert list(pn.select(model, types=nnx.Linear, ndim=2)) == ["linear.kernel", "several.0.kernel"]
    assert list(pn.select(model, "scale.*", types=Scale)) == ["scale.factor"]


@pytest.mark.parametrize("nest", [lambda state: state, lambda state: [{"model": state}]], ids=["alone", "in a nest"])
def test_only_params_are_selected_from_a_state_by_their_names(nest: Any) -> None:
    model = Containers()
    by_flax = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    state = nest(nnx.state(model))
    prefix = "" if isinstance(state, nnx.State) else "0.model."
    assert set(pn.select(state)) == {prefix + name for name in by_flax}
    assert list(pn.select(state, "*.kernel")) == [f"{prefix}several.0.kernel"]
    grad = jax.grad(lambda state: DECAY.total(params=pn.select(state, "*scale.factor")))(state)
    np.testing.assert_array_equal(pn.select(grad)[f"{prefix}scale.factor"], 2 * np.ones(3))


def test_a_state_of_arrays_is_a_nest_of_them() -> None:
    arrays = nnx.as_pure(nnx.state(Network(), nnx.Param))
    assert list(pn.select(arrays, "head.*")) == ["head.bias", "head.kernel"]


def test_the_state_of_an_optimizer_is_never_selected() -> None:
    model = Network()
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    for given in (optimizer, nnx.state(optimizer), nnx.state(model, nnx.BatchStat), nnx.Param(jnp.ones(2))):
        with pytest.raises(pn.OptionError, match="expected a model or a nest with parameters"):
            pn.select(given)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    state = TrainState.create(apply_fn=lambda: None, params=params, tx=optax.adam(0.1))
    with pytest.raises(pn.OptionError, match='"TrainState"; expected the parameters without the optimizer, such as st'):
        pn.select(state)
    assert "head.kernel" in pn.select(state.params)


def test_a_selection_reads_the_model_as_it_is_now_and_has_a_gradient_inside() -> None:
    model = Network()
    selected = pn.select(model, "*.kernel")
    model.head.kernel[...] = model.head.kernel[...] * 3
    np.testing.assert_allclose(selected["head.kernel"], model.head.kernel[...])

    @nnx.jit
    def gradient(model: Any) -> Any:
        return nnx.grad(lambda model: DECAY.total(params=pn.select(model, "*.kernel")))(model)

    grads = gradient(model)
    np.testing.assert_allclose(grads["head"]["kernel"][...], 2 * model.head.kernel[...], rtol=1e-6)
    np.testing.assert_array_equal(grads["head"]["bias"][...], np.zeros(2))


def test_outputs_are_captured_by_name_with_gradients() -> None:
    model = Network()
    with pn.capture(model, ["blocks.*", "head"]) as activations:
        prediction = activations.model(X)
    # The head is called twice, under both of its names.
    assert list(activations) == [
        "blocks.0",
        "blocks.0.linear",
        "blocks.0.norm",
        "blocks.1",
        "blocks.1.linear",
        "blocks.1.norm",
        "head",
        "blocks.0.gate",
        "blocks.1.gate",
    ]
    np.testing.assert_allclose(activations["head"][1], prediction)
    np.testing.assert_allclose(activations["blocks.0.gate"], 2 * activations["blocks.0"])

    @nnx.jit
    def gradient(model: Any) -> Any:
        def loss(model: Any) -> Any:
            with pn.capture(model, "blocks.0.linear") as activations:
                activations.model(X)
            return DECAY.total(params=activations)

        return nnx.grad(loss)(model)

    right = nnx.grad(lambda model: jnp.sum(model.blocks[0].linear(X) ** 2))(model)
    np.testing.assert_allclose(
        gradient(model)["blocks"][0]["linear"]["kernel"][...], right["blocks"][0]["linear"]["kernel"][...], rtol=1e-5
    )


def test_a_capture_that_saw_nothing_raises() -> None:
    model = Network()
    with (
        pytest.raises(pn.OptionError, match=r"call the model of the capture, captured\.model"),
        pn.capture(model, "head"),
    ):
        model.head(X)
    with pytest.raises(pn.OptionError, match='such as "head"'), pn.capture(model, "haed") as activations:
        activations.model(X)


def test_auxiliary_losses_are_collected_inside_a_compiled_gradient() -> None:
    model = Network()
    terms = pn.Pipeline([pn.Term(pn.precomputed, inputs="losses.router")])

    @nnx.jit
    def gradient(model: Any) -> Any:
        def loss(model: Any) -> Any:
            with pn.collect() as losses:
                nnx.capture(model, nnx.Intermediate)(X)
            assert list(losses) == ["router.0", "router.1"]
            return terms.total(losses=losses)

        return nnx.grad(loss)(model)

    scale = gradient(model)["blocks"][0]["norm"]["scale"][...]
    assert jnp.abs(scale).sum() > 0


def test_tied_parameters_are_known_by_each_of_their_names() -> None:
    model = Network()
    model.blocks[1].linear.kernel = model.blocks[0].linear.kernel
    assert "also blocks.1.linear.kernel" in repr(pn.select(model))
    assert "blocks.0.linear.kernel" not in pn.select(model, exclude="blocks.1.*")
    assert list(pn.select(model, "blocks.1.linear.kernel")) == ["blocks.1.linear.kernel"]


def test_a_function_that_chooses_what_to_capture_gets_the_module() -> None:
    model = Network()
    with pn.capture(model, lambda name, module: isinstance(module, nnx.Linear)) as activations:
        activations.model(X)
    assert list(activations) == ["blocks.0.linear", "blocks.1.linear", "head"]
