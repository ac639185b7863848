"""Train a small classifier with Keras in whose hidden layer few units respond to any one example.

Points on two interleaved half-moons, among sixteen inputs of noise. An L1 penalty of the activities switches most units
off for each example, and one of the first kernel takes the noise out; both rise from 0 once the classifier has learnt
something. Run it with `python examples/trainers/keras_sparse_code.py`; it needs `pip install "penalties[keras]"`, and
PyTorch or JAX, which KERAS_BACKEND chooses.
"""

import os
import warnings
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

import penalties as pn
from penalties.integrations.keras import ActivityPenalty, PenaltiesCallback, Penalty

EPOCHS = 40
ROWS = 100
UNITS = 32
STEPS = EPOCHS * 2000 // ROWS


def moons(count: int, seed: int) -> tuple[Any, Any]:
    """Points on two half-moons, as inputs 0 and 1 of eighteen, and which moon each is on."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=count)
    angle = np.pi * (rng.random(count) + labels)
    x = rng.normal(size=(count, 18))
    x[:, 0] = 1.5 * (np.cos(angle) + labels - 0.5) + 0.15 * rng.normal(size=count)
    x[:, 1] = 1.5 * (np.sin(angle) + 0.5 * labels - 0.25) + 0.15 * rng.normal(size=count)
    return x.astype("float32"), labels


def rising(weight: float) -> pn.schedules.chain:
    """0 for a quarter of the run, then up to the weight in another quarter."""
    quarter = STEPS // 4
    return pn.schedules.chain((pn.schedules.constant(0.0), quarter), pn.schedules.warmup(weight, quarter))


def classifier(activity: float, inputs: float) -> keras.Model:
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(
        UNITS,
        "relu",
        name="hidden",
        kernel_regularizer=Penalty("l1", rising(inputs), name="inputs"),
        activity_regularizer=ActivityPenalty("l1", rising(activity), name="activity"),
    )
    model = keras.Sequential([keras.Input((18,)), hidden, keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def summary(model: keras.Model, x: Any, labels: Any) -> str:
    _, accuracy = model.evaluate(x, labels, verbose=0, callbacks=[PenaltiesCallback()])
    kernel, bias = model.get_layer("hidden").get_weights()
    active = (x @ kernel + bias > 0).sum(1).mean()
    noise = np.square(kernel[2:]).sum() / np.square(kernel).sum()
    return f"test accuracy {accuracy:.1%}, {active:.1f} of {UNITS} units active, {noise:.0%} of the kernel on noise"


def shown(history: dict[str, list[float]], name: str, epoch: int) -> str:
    return f"{name} {history[f'loss/{name}'][epoch]:.2f} × {history[f'weight/{name}'][epoch]:.4f}"


def main() -> None:
    # Keras's own conversion of its variables.
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy")
    data, test = moons(2000, 0), moons(2000, 1)
    for activity, inputs in ((0.0, 0.0), (0.02, 0.005)):
        model = classifier(activity, inputs)
        history = model.fit(*data, batch_size=ROWS, epochs=EPOCHS, verbose=0, callbacks=[PenaltiesCallback()]).history
        for epoch in (0, EPOCHS // 2, EPOCHS - 1) if activity else ():
            print(f"epoch {epoch + 1:2d}: {', '.join(shown(history, name, epoch) for name in ('activity', 'inputs'))}")
        name = "with penalties" if activity else "without penalties"
        print(f"{name}: {summary(model, *test)}")


if __name__ == "__main__":
    main()
