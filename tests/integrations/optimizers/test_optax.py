"""The transforms for Optax: known updates, exact zeros, schedules, masks, state, compilation."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penalties as pn
from penalties.integrations.optax import StepCount, centralize, decay, proximal
from tests.integrations.optimizers.golden import NOISE, UPDATES

optax = pytest.importorskip("optax")

TRANSFORMS = {
    "decay": decay,
    "centralize": lambda: centralize(axis=0),
    # What Optax has.
    "clip_norm": lambda max_norm: optax.clip_by_global_norm(max_norm),
    "clip_units": lambda ratio, eps: optax.adaptive_grad_clip(ratio, eps),
}


def after(transform: Any, params: Any, gradients: Any = None) -> Any:
    """The parameters after one step of a transform that is the whole optimizer."""
    params = jax.tree.map(jnp.asarray, params)
    gradients = jax.tree.map(jnp.zeros_like, params) if gradients is None else gradients
    updates, _ = transform.update(gradients, transform.init(params), params)
    return optax.apply_updates(params, updates)


@pytest.mark.slow
def test_updates_are_the_known_ones():
    for row, chain, rate, weights, gradients, expected in UPDATES:
        optimizer = optax.chain(*[TRANSFORMS[name](**options) for name, options in chain], optax.sgd(rate))
        params, given = ([jnp.asarray(one, jnp.float64) for one in many] for many in (weights, gradients))
        updates, _ = optimizer.update(given, optimizer.init(params), params)
        for update, known in zip(updates, expected, strict=True):
            np.testing.assert_allclose(update, np.asarray(known, float), rtol=1e-6, atol=1e-9, err_msg=row)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variance", "exponent", "expected"), [row[1:] for row in NOISE], ids=[row[0] for row in NOISE]
)
def test_the_noise_of_optax_is_the_known_one(variance: float, exponent: float, expected: dict[int, float]):
    noise = optax.add_noise(variance, exponent, key=0)
    zeros = jnp.zeros(20_000)
    update = jax.jit(noise.update)
    for step, known in expected.items():
        drawn, _ = update(zeros, noise.init(zeros)._replace(count=jnp.asarray(step, jnp.int32)))
        assert float(drawn.var()) == pytest.approx(known, rel=0.04)


def test_decoupled_l2_is_that_of_adamw():
    params, gradients = jnp.array([1.0, -2.0]), jnp.array([0.3, 0.1])
    ours = optax.chain(optax.scale_by_adam(), decay(l2=0.1), optax.scale_by_learning_rate(0.01))
    theirs = optax.adamw(0.01, weight_decay=0.1)
    np.testing.assert_allclose(after(ours, params, gradients), after(theirs, params, gradients), rtol=1e-12)


def test_coupled_l1_goes_through_the_moments_and_decoupled_does_not():
    params = jnp.array([1.0, -2.0, 0.0])
    coupled = optax.chain(decay(l1=1e-3), optax.scale_by_adam(), optax.scale_by_learning_rate(0.1))
    decoupled = optax.chain(optax.scale_by_adam(), decay(l1=1e-3), optax.scale_by_learning_rate(0.1))
    np.testing.assert_allclose(after(coupled, params), [0.9, -1.9, 0.0], atol=1e-5)
    np.testing.assert_allclose(after(decoupled, params), [0.9999, -1.9999, 0.0], rtol=1e-12)


def test_exactly_the_support_of_a_sparse_regression_is_found_in_a_compiled_loop():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(90, 100)))
    support = [3, 17, 42, 64, 91]
    truth = jnp.zeros(100).at[jnp.array(support)].set(jnp.array([2.0, -1.5, 1.0, -1.0, 2.5]))
    y = x @ truth + 0.1 * jnp.asarray(rng.normal(size=90))
    optimizer = optax.chain(optax.sgd(0.2), proximal(0.2, l1=0.3))

    def step(_: Any, carried: Any) -> Any:
        params, state = carried
        gradient = jax.grad(lambda w: ((x @ w - y) ** 2).mean() / 2)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    start = jnp.zeros(100)
    params, state = jax.jit(lambda carried: jax.lax.fori_loop(0, 300, step, carried))((start, optimizer.init(start)))
    assert np.flatnonzero(params).tolist() == support
    slope = x.T @ (x @ params - y) / 90
    np.testing.assert_allclose(slope[jnp.array(support)], -0.3 * np.sign(truth[jnp.array(support)]), rtol=1e-5)
    assert int(optax.tree.get(state, "count")) == 300


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_zeros_are_exact_in_every_precision(dtype: str):
    params = jnp.asarray([[0.1, 300.0], [0.2, 400.0]], dtype)
    for options in ({"l1": 0.5}, {"group": 0.5}, {"l1": 0.1, "group": 0.3, "l2": 0.1}):
        found = after(proximal(1.0, **options), params)
        assert found.dtype == params.dtype
        assert np.count_nonzero(found, axis=0).tolist() == [0, 2]
        assert bool(jnp.isfinite(found).all())


def test_a_proximal_step_is_that_of_torch():
    import torch

    from penalties.integrations import torch as hooks

    values = np.random.default_rng(0).normal(size=(4, 3))
    options = {"l1": 0.3, "l2": 0.7, "group": 0.4}
    weight = torch.nn.Parameter(torch.tensor(values))
    weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    hooks.proximal(optimizer, **options, axis=1)
    optimizer.step()
    found = after(proximal(0.5, **options), values)
    np.testing.assert_allclose(found, weight.detach(), rtol=1e-12, atol=1e-15)
    assert np.count_nonzero(found) < 12


@pytest.mark.slow
def test_nan_stays_nan_and_zero_stays_zero():
    params = jnp.array([[jnp.nan, 0.0], [1.0, 0.0]])
    for options in ({"l1": 1.0}, {"group": 1.0}, {"group": 0.0}, {"l1": 0.0}):
        found = after(proximal(1.0, **options), params)
        assert np.isnan(found[0, 0])
        assert found[:, 1].tolist() == [0.0, 0.0]


def test_arrays_of_one_axis_have_no_units():
    found = after(proximal(1.0, group=100.0), {"bias": jnp.ones(2), "scale": jnp.ones(())})
    assert found["bias"].tolist() == [1.0, 1.0]
    assert float(found["scale"]) == 1.0


def test_strengths_and_learning_rates_may_be_schedules_and_nothing_is_compiled_again():
    traces = []
    rate = optax.piecewise_constant_schedule(0.5, {2: 0.5})
    transform = proximal(rate, l1=pn.schedules.piecewise({0: 0.0, 1: 1.0}))

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        traces.append(1)
        updates, state = transform.update(jnp.zeros_like(params), state, params)
        return optax.apply_updates(params, updates), state

    params, seen = jnp.array([2.0]), []
    state = transform.init(params)
    for _ in range(4):
        params, state = step(params, state)
        seen.append(float(params[0]))
    assert seen == [2.0, 1.5, 1.25, 1.0]
    assert isinstance(state, StepCount)
    assert len(traces) == 1


def test_hyperparameters_may_be_injected():
    transform = optax.inject_hyperparams(proximal, static_args="axis")(learning_rate=0.5, l1=1.0)
    params = jnp.array([2.0])
    state = transform.init(params)
    state.hyperparams["l1"] = jnp.asarray(2.0)
    updates, _ = transform.update(jnp.zeros(1), state, params)
    assert float(params[0] + updates[0]) == 1.0


@pytest.mark.parametrize(
    "mask", [{"w": True, "b": False}, lambda params: {"w": True, "b": False}], ids=["tree", "function"]
)
@pytest.mark.parametrize(
    "transform", [lambda mask: decay(l1=-0.0, l2=1.0, mask=mask), lambda mask: proximal(1.0, l1=1.0, mask=mask)]
)
def test_a_mask_says_which_parameters(transform: Any, mask: Any):
    params = {"w": jnp.ones(1), "b": jnp.ones(1)}
    found = after(transform(mask), params)
    assert float(found["b"][0]) == 1.0
    assert float(found["w"][0]) != 1.0


def test_gradients_of_none_stay_none():
    params = {"w": jnp.ones(1), "fixed": jnp.ones(1)}
    for transform in (decay(l1=0.1), proximal(0.1, l1=0.1), centralize()):
        updates, _ = transform.update({"w": jnp.zeros(1), "fixed": None}, transform.init(params), params)
        assert updates["fixed"] is None


def test_extra_arguments_pass_through_a_chain():
    optimizer = optax.chain(decay(l1=0.1), optax.sgd(0.1), proximal(0.1, l1=0.1))
    params = jnp.ones(1)
    optimizer.update(jnp.zeros(1), optimizer.init(params), params, value=1.0)


def test_the_units_to_centralize_lie_along_an_axis():
    gradient = jnp.array([[1.0, 4.0], [3.0, 0.0]])
    for axis, expected in ((-1, [[-1.0, 2.0], [1.0, -2.0]]), (0, [[-1.5, 1.5], [1.5, -1.5]])):
        updates, _ = centralize(axis=axis).update(gradient, StepCount(jnp.asarray(0)), gradient)
        assert updates.tolist() == expected


def test_wrong_options_and_missing_parameters_are_errors():
    with pytest.raises(pn.OptionError, match="decay: l1=-1.0; expected a finite number of at least 0"):
        decay(l1=-1.0)
    with pytest.raises(pn.OptionError, match="decay: l1, l2=None; expected a strength"):
        decay()
    with pytest.raises(pn.OptionError, match="proximal: learning_rate=nan; expected a finite number of at least 0"):
        proximal(float("nan"), l1=1.0)
    with pytest.raises(pn.OptionError, match="centralize: axis=None; expected a whole number"):
        centralize(axis=None)
    params = jnp.ones((2, 2))
    with pytest.raises(pn.ShapeError, match=r"centralize: axis=2, but a parameter has shape \(2, 2\); choose the axis"):
        after(centralize(axis=2), params)
    with pytest.raises(pn.InputError, match="decay: the parameters are missing; call update"):
        decay(l1=0.1).update(params, StepCount(jnp.asarray(0)))


def test_without_optax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(pn.MissingLibraryError, match=r'decay needs optax: pip install "penalties\[optax\]"'):
        decay(l1=0.1)


def test_zeros_are_exact_where_updates_have_fewer_digits_than_parameters():
    params = jnp.asarray([0.1, -0.3], jnp.float32)
    assert after(proximal(1.0, l1=1.0), params, jnp.zeros(2, jnp.bfloat16)).tolist() == [0.0, 0.0]
