"""Selection, capture and auxiliary losses on Flax NNX."""

from typing import Any

import numpy as np
import pytest

import penalties as pn

nnx: Any = pytest.importorskip("flax.nnx")

import jax.numpy as jnp  # noqa: E402

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
