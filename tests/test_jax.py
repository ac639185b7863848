"""What is particular to JAX: pytrees, traced values, keys, its default precision."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import penalties as pn
from penalties.backends import double_precision
from tests.libraries import JAX, LIBRARIES

pytestmark = pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")


@jax.tree_util.register_pytree_node_class
class Layer:
    def __init__(self, w: Any, b: Any) -> None:
        self.w, self.b = w, b

    def tree_flatten(self) -> Any:
        return (self.w, self.b), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> "Layer":
        return cls(*children)


class Pair(NamedTuple):
    first: Any
    second: Any


def parameters() -> dict[str, Any]:
    return {"layer": Layer(jnp.ones((2, 3)), None), "rest": [Pair(jnp.full(4, -2.0), (jnp.array(3.0),))], "none": None}


def test_registered_pytrees_are_nests() -> None:
    assert float(pn.l1(parameters())) == 17.0
    assert float(pn.l1(Layer(jnp.ones(2), jnp.ones(3)))) == 5.0
    assert float(pn.l2(Layer([jnp.ones(2)], {"a": jnp.ones(3)}), reduction="mean")) == 1.0
    logits = pn.Logits(jnp.ones((1, 2)), jnp.ones((3, 2)))
    assert float(pn.l1(Layer(logits, jnp.ones(3)))) == 9.0
    own = pn.Pipeline([pn.Term(lambda layer: layer.w.sum() + layer.b.sum(), name="own")])
    assert float(own(layer=Layer(logits, jnp.ones(3))).total) == 9.0


def test_none_keeps_the_structure_of_a_nest() -> None:
    each = pn.l1(parameters(), reduction="none")
    assert jax.tree_util.tree_structure(each) == jax.tree_util.tree_structure(parameters())
    assert isinstance(each["rest"][0], Pair)
    np.testing.assert_array_equal(each["rest"][0].first, np.full(4, 2.0))


def test_a_class_that_jax_does_not_know_is_no_nest() -> None:
    with pytest.raises(pn.BackendError, match="^l1: x is a object; expected"):
        pn.l1(object())
    with pytest.raises(pn.BackendError, match=r"^l1: x\[1\] is a float; expected"):
        pn.l1(Layer(jnp.ones(2), 1.0))


def test_gradients_of_a_nest_under_jit() -> None:
    gradient = jax.jit(jax.grad(lambda p: pn.elastic_net(p, l1_ratio=0.5)))(parameters())
    np.testing.assert_allclose(gradient["layer"].w, np.full((2, 3), 1.5))
    np.testing.assert_allclose(gradient["rest"][0].first, np.full(4, -2.5))


def test_keys_of_both_kinds() -> None:
    x = jnp.asarray(np.random.default_rng(14).normal(size=(20, 3)))
    cube = lambda z: (z**3).sum(-1)
    for make in (jax.random.key, jax.random.PRNGKey):
        sampled = jax.jit(lambda key: pn.orthogonality(x, sample_size=4, seed=key))
        assert sampled(make(0)) == sampled(make(0))
        assert sampled(make(0)) != sampled(make(1))
        mixed = jax.jit(lambda key: pn.interpolated_gradient_penalty(cube, x, 0 * x, seed=key))
        assert mixed(make(0)) != mixed(make(1))


def test_a_stateless_batch_norm_inside_a_gradient_penalty() -> None:
    rng = np.random.default_rng(15)
    w, v = jnp.asarray(rng.normal(size=(3, 4))), jnp.asarray(rng.normal(size=4))

    def penalty(w: Any, x: Any) -> Any:
        def critic(z: Any) -> Any:
            hidden = z @ w
            hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-5)
            return jnp.tanh(hidden) @ v

        return pn.gradient_penalty(critic, x)

    x = jnp.asarray(rng.normal(size=(5, 3)))
    check_grads(jax.jit(penalty), (w, x), order=2, modes=("rev",), rtol=1e-3)


def test_default_precision_stays_float32() -> None:
    with double_precision(False):
        x = jnp.asarray([[1.0, 2.0], [0.5, -1.0]])
        mask = jnp.asarray([True, False])
        for value in (
            pn.l2(x, center="mean"),
            pn.l1(jnp.asarray([1, 2])),
            pn.kl_divergence(x, x + 1, logits=True, mask=mask),
            pn.kl_estimate(x, x + 1, mask=x > 0),
            pn.orthogonality(x, mode="spectral"),
            pn.orthogonality(x, sample_size=2),
            pn.interpolated_gradient_penalty(lambda z: z.sum(-1), x, x),
        ):
            assert value.dtype == jnp.float32


def test_power_iteration_is_compiled_once(caplog: pytest.LogCaptureFixture) -> None:
    """Outside jit too: a loop body that is new each call would be compiled each call."""
    from penalties.backends import jax as backend

    # A size of its own, which no other test has compiled.
    matrix, start = jnp.diag(jnp.array([3.0, -4.0, *[0.0] * 9])), jnp.ones(11)
    other = 2 * matrix

    def compiled(step: Any) -> list[str]:
        caplog.clear()
        with jax.log_compiles():
            vector = step()
        np.testing.assert_allclose(np.abs(vector), [(3 / 4) ** 14, 1.0, *[0.0] * 9], rtol=1e-6)
        return [record.message for record in caplog.records if record.message.startswith("Compiling")]

    assert compiled(lambda: backend.power_iteration(matrix, start, 7))
    assert not compiled(lambda: backend.power_iteration(other, start, 7))


def test_views_of_a_dict_are_nests() -> None:
    assert float(pn.l1({"a": jnp.ones(2), "b": jnp.ones(3)}.values())) == 5.0


def test_paired_pytrees_pair_by_key() -> None:
    """`jax.tree.map` sorts the keys of a dict, so two dicts of one structure may differ in order."""
    p = {"b": jnp.array([-1.0]), "a": jnp.array([-2.0])}
    assert float(pn.kl_estimate(jax.tree.map(lambda z: z, p), p, reduction="sum")) == 0.0


def test_an_integer_output_has_no_gradient() -> None:
    with pytest.raises(pn.BackendError, match="gradient_penalty: fn returned dtype int.*; expected floats"):
        pn.gradient_penalty(lambda z: jnp.argmax(z), jnp.ones(3))
