"""Find the inputs that matter for a classifier in Flax NNX: a group lasso sets the weights of all others to exactly 0.

Two of twenty inputs are coordinates on two interleaved half-moons, and the others are noise. A pipeline adds up the
loss inside `nnx.value_and_grad`; the proximal step is the last of the optimizer's chain. Run it with
`python examples/frameworks/nnx_input_selection.py`; it needs `pip install "penalties[optax]" flax`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import penalties as pn
from penalties.integrations.optax import decay, proximal

STEPS = 2000
RATE = 0.5
DECAY = 0.001

PIPELINE = pn.Pipeline(
    [pn.Term(pn.entropy, name="confidence", weight=0.01, inputs="logits", options={"mode": "bonus", "logits": True})],
    base=lambda logits, labels: optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(),
)


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(20, 32, rngs=rngs)
        self.second = nnx.Linear(32, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(nnx.relu(self.first(x)))


def moons(count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Points on two half-moons, as inputs 0 and 1 of twenty, and which moon each is on."""
    labels = rng.integers(2, size=count)
    angle = np.pi * (rng.random(count) + labels)
    x = rng.normal(size=(count, 20))
    x[:, 0] = 1.5 * (np.cos(angle) + labels - 0.5) + 0.15 * rng.normal(size=count)
    x[:, 1] = 1.5 * (np.sin(angle) + 0.5 * labels - 0.25) + 0.15 * rng.normal(size=count)
    return jnp.asarray(x, jnp.float32), jnp.asarray(labels)


def first_kernel(params: Any) -> Any:
    """A mask for the kernel of the first layer alone."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "first" in jax.tree_util.keystr(path) and "kernel" in jax.tree_util.keystr(path), params
    )


@nnx.jit
def step(model: Classifier, optimizer: nnx.Optimizer, x: Any, labels: Any) -> pn.LossOutput:
    def loss(model: Classifier) -> tuple[Any, pn.LossOutput]:
        out = PIPELINE(logits=model(x), labels=labels)
        return out.total, out

    (_, out), gradient = nnx.value_and_grad(loss, has_aux=True)(model)
    optimizer.update(model, gradient)
    return out


def train(strength: float, x: Any, labels: Any) -> Classifier:
    model = Classifier(nnx.Rngs(0))
    # A kernel of Flax is (inputs, outputs): what belongs to one input is a slice along axis 0.
    # Without decay the second layer would make up for what the first one loses.
    sparse = proximal(RATE, group=strength, axis=0, mask=first_kernel)
    optimizer = nnx.Optimizer(model, optax.chain(decay(l2=DECAY), optax.sgd(RATE), sparse), wrt=nnx.Param)
    for index in range(STEPS):
        out = step(model, optimizer, x, labels)
        if strength and index % 500 == 0:
            print(f"{index:4d}  {out.metrics()['base_loss']:.3f}  {len(in_use(model)):2d} inputs in use")
    return model


def in_use(model: Classifier) -> list[int]:
    return np.flatnonzero(np.any(np.asarray(model.first.kernel[...]) != 0, axis=1)).tolist()


def accuracy(model: Classifier, x: Any, labels: Any) -> float:
    return 100 * float((model(x).argmax(-1) == labels).mean())


def main() -> None:
    rng = np.random.default_rng(0)
    data, test = moons(2000, rng), moons(2000, rng)
    for strength in (0.04, 0.0):
        model = train(strength, *data)
        found = in_use(model)
        shown = found if len(found) < 5 else f"all {len(found)}"
        print(f"group lasso {strength}: test accuracy {accuracy(model, *test):.1f}%, inputs in use {shown}")


if __name__ == "__main__":
    main()
