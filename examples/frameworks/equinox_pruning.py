"""Prune the hidden units of an Equinox network while it learns: a group lasso sets whole rows to exactly 0.

A network of 64 hidden units learns which of two spirals a point is on. Its proximal step removes units, and decoupled
decay keeps the others small. Run it with `python examples/frameworks/equinox_pruning.py`; it needs
`pip install "penalties[optax]" equinox`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import penalties as pn
from penalties.integrations.optax import decay, proximal

STEPS = 3000
RATE = 0.01

PIPELINE = pn.Pipeline(
    [pn.Term(pn.l2, name="size", weight=1e-4, inputs="logits", options={"reduction": "mean"})],
    base=lambda logits, labels: optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(),
)


def spirals(count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    labels = rng.integers(2, size=count)
    turn = 3.5 * np.sqrt(rng.random(count))
    x = turn[:, None] * np.stack([np.cos(turn + np.pi * labels), np.sin(turn + np.pi * labels)], axis=1)
    return jnp.asarray(x + 0.1 * rng.normal(size=x.shape), jnp.float32), jnp.asarray(labels)


def hidden_weights(model: eqx.nn.MLP) -> Any:
    """A mask for the weights of the first layer alone."""
    nothing = jax.tree.map(lambda _: False, model)
    return eqx.tree_at(lambda tree: tree.layers[0].weight, nothing, True)


def train(strength: float, x: Any, labels: Any) -> eqx.nn.MLP:
    model = eqx.nn.MLP(2, 2, width_size=64, depth=1, key=jax.random.key(0))
    optimizer = optax.chain(
        optax.scale_by_adam(),
        decay(l2=1e-3),
        optax.scale_by_learning_rate(RATE),
        # A weight of Equinox is (outputs, inputs): a hidden unit is a slice along axis 0.
        proximal(RATE, group=strength, axis=0, mask=hidden_weights),
    )
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model: eqx.nn.MLP, state: Any) -> tuple[eqx.nn.MLP, Any, pn.LossOutput]:
        def loss(model: eqx.nn.MLP) -> tuple[Any, pn.LossOutput]:
            out = PIPELINE(logits=jax.vmap(model)(x), labels=labels)
            return out.total, out

        (_, out), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(model)
        updates, state = optimizer.update(gradient, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, out

    for index in range(STEPS):
        model, state, out = step(model, state)
        if strength and index % 1000 == 0:
            print(f"{index:4d}  {out.metrics()['base_loss']:.3f}  {in_use(model):2d} hidden units in use")
    return model


def in_use(model: eqx.nn.MLP) -> int:
    return int(jnp.any(model.layers[0].weight != 0, axis=1).sum())


def main() -> None:
    rng = np.random.default_rng(0)
    data, test = spirals(400, rng), spirals(2000, rng)
    for strength in (0.3, 0.0):
        model = train(strength, *data)
        accuracy = 100 * float((jax.vmap(model)(test[0]).argmax(-1) == test[1]).mean())
        print(f"group lasso {strength}: test accuracy {accuracy:.1f}%, {in_use(model)} of 64 hidden units in use")


if __name__ == "__main__":
    main()
