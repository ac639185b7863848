"""Losses that modules compute on the way: collected by name and call, and brought into a pipeline."""

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import penalties as pn

X = torch.linspace(-1, 1, 12).reshape(3, 4)
TERMS = pn.Pipeline(
    [
        pn.Term(pn.precomputed, name="balance", weight=0.5, inputs="losses.router"),
        pn.Term(pn.precomputed, name="last", inputs="losses.router.1"),
    ]
)


class Routed(nn.Module):
    """One layer that is called twice, with a loss of its own each time."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.reentrant = nn.Linear(4, 4), reentrant

    def routed(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.layer(x))
        pn.auxiliary("router", x.square().mean())
        return x

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.routed(x) if self.reentrant is None else checkpoint(self.routed, x, use_reentrant=self.reentrant)
        return x


def trained(model: Routed, forward: Any) -> tuple[Tensor, Tensor]:
    """The total of the terms, and the gradient of the layer's weight."""
    model.zero_grad()
    with pn.collect() as losses:
        prediction = forward(X)
        out = TERMS(losses=losses)
        (prediction.sum() + out.total).backward()
        assert list(losses) == ["router.0", "router.1"]
    return out.total.detach(), model.layer.weight.grad


def expected() -> tuple[Tensor, Tensor]:
    """The same, written by hand."""
    model = Routed()
    first = torch.tanh(model.layer(X))
    second = torch.tanh(model.layer(first))
    total = 0.5 * (first.square().mean() + second.square().mean()) + second.square().mean()
    (second.sum() + total).backward()
    return total.detach(), model.layer.weight.grad


@pytest.mark.parametrize("reentrant", [None, False])
def test_each_call_counts_once_with_its_gradient_also_under_checkpointing(reentrant: bool | None) -> None:
    model = Routed(reentrant)
    torch.testing.assert_close(trained(model, model), expected())


def test_reentrant_checkpointing_raises() -> None:
    model = Routed(reentrant=True)
    with pn.collect() as losses:
        model(X.clone().requires_grad_())
    with pytest.raises(pn.GradientError, match='"router.0" was computed without a graph.*use_reentrant=False'):
        losses["router.0"]
    with torch.no_grad(), pn.collect() as losses:
        Routed()(X)
    assert losses["router.1"] > 0


def test_a_compiled_model_is_collected_from_without_new_graphs() -> None:
    torch.compiler.reset()
    model = Routed()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(X)
    torch.testing.assert_close(trained(model, compiled), expected())
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(2):
            torch.testing.assert_close(trained(model, compiled), expected())


def test_everything_may_be_inside_one_compiled_function() -> None:
    torch.compiler.reset()
    model = Routed()

    def total(x: Tensor) -> Tensor:
        with pn.collect() as losses:
            model(x)
        return TERMS.total(losses=losses)

    right, _ = expected()
    torch.testing.assert_close(torch.compile(total, fullgraph=True, backend="aot_eager")(X).detach(), right)


def test_values_are_numbered_by_name_and_never_overwritten() -> None:
    with pn.collect() as losses:
        for number in range(3):
            pn.auxiliary("a" if number % 2 == 0 else "b", np.array(float(number)))
    assert dict(losses) == {"a.0": 0.0, "a.1": 2.0, "b.0": 1.0}
    assert losses["a"] == [0.0, 2.0]
    assert len(losses) == 3
    assert repr(losses) == "Collected(a: 2, b: 1)"
    assert pn.precomputed(losses) == 3.0


@pytest.mark.parametrize("name", ["a.2", "a.x", "c", "a."])
def test_a_name_that_was_not_collected_is_an_error(name: str) -> None:
    with pn.collect() as losses:
        pn.auxiliary("a", np.array(1.0))
    with pytest.raises(pn.InputError, match=f'no value is named "{name}"; there are: "a.0"'):
        losses[name]


def test_a_term_over_a_loss_that_nobody_computed_is_an_error() -> None:
    with pn.collect() as losses:
        pass
    with pytest.raises(pn.InputError, match='no part "router"'):
        TERMS(losses=losses)


@pytest.mark.parametrize(("name", "value"), [("", X), ("a.b", X), ("a", 1.0), ("a", [X])])
def test_wrong_names_and_values_are_errors(name: str, value: Any) -> None:
    with pytest.raises(pn.OptionError, match="auxiliary: (name|value)="):
        pn.auxiliary(name, value)


def test_outside_of_a_block_nothing_happens() -> None:
    with pn.collect() as losses:
        pass
    pn.auxiliary("a", X)
    assert len(losses) == 0


def test_the_innermost_block_gets_a_value_and_an_error_ends_a_block() -> None:
    with pn.collect() as outer:
        with contextlib.suppress(ZeroDivisionError), pn.collect() as inner:
            pn.auxiliary("a", X)
            raise ZeroDivisionError
        pn.auxiliary("b", X)
    assert list(inner) == ["a.0"]
    assert list(outer) == ["b.0"]


def test_threads_with_blocks_of_their_own_do_not_mix_and_others_join_the_last() -> None:
    entered, left = threading.Event(), threading.Event()
    own: list[str] = []

    def work() -> None:
        with pn.collect() as losses:
            entered.set()
            left.wait(60)
            pn.auxiliary("there", X)
        own.extend(losses)

    thread = threading.Thread(target=work)
    with pn.collect() as losses:
        replica = threading.Thread(target=pn.auxiliary, args=("replica", X))
        replica.start()
        replica.join()
        thread.start()
        entered.wait(60)
        pn.auxiliary("here", X)
    left.set()
    thread.join()
    assert list(losses) == ["replica.0", "here.0"]
    assert own == ["there.0"]


def test_jax_functions_collect_inside_a_gradient() -> None:
    import jax
    import jax.numpy as jnp

    def loss(w: Any) -> Any:
        with pn.collect() as losses:
            pn.auxiliary("square", jnp.sum(w**2))
        return pn.Pipeline([pn.Term(pn.precomputed, inputs="losses.square")]).total(losses=losses)

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(jnp.ones(3)), 2 * np.ones(3))


def test_an_existing_scalar_is_a_term_that_counts_as_a_mean_over_micro_batches() -> None:
    from penalties.pipeline.scope import scope_of

    assert scope_of(TERMS["balance"]) == "mean"
    for x in (np.ones(2), [np.array(1.0), np.ones((1, 1))]):
        with pytest.raises(pn.ShapeError, match="expected a scalar: reduce it"):
            pn.precomputed(x)


def test_a_loop_inside_one_block_clears_what_was_collected() -> None:
    model = Routed()
    with pn.collect() as losses:
        for _ in range(2):
            losses.clear()
            assert list(losses) == []
            model(X)
    assert list(losses) == ["router.0", "router.1"]
