"""A small model with a regularizer of each kind, its data, and the loop by hand that Keras is compared with."""

from typing import Any

import keras
import numpy as np
import torch

import penalties as pn
from penalties.integrations.keras import ActivityPenalty, Penalty

ROWS = 4
LEARNING_RATE = 0.05
RISE = pn.schedules.linear(0.0, 0.5, 10)
FALL = pn.schedules.cosine(0.3, 0.0, 10)


def data(batches: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(batches * ROWS, 3)).astype("float32"), rng.normal(size=(batches * ROWS, 1)).astype(
        "float32"
    )


def model(accumulation: int | None = None, **compiled: Any) -> Any:
    keras.utils.set_random_seed(0)
    decay = Penalty("l2", RISE, name="decay")
    level = ActivityPenalty(pn.l2, FALL, name="level", options={"reduction": "mean"})
    made = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(5, "tanh", kernel_regularizer=decay, activity_regularizer=level),
            keras.layers.Dense(4, "tanh", kernel_regularizer=decay, activity_regularizer=ActivityPenalty("l1", 0.1)),
            keras.layers.Dense(1, bias_regularizer=Penalty(pn.smooth_l1, 0.2, options={"delta": 0.5})),
        ]
    )
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=0.9, gradient_accumulation_steps=accumulation)
    made.compile(optimizer, "mse", **compiled)
    return made


def fit(made: Any, batches: int, **more: Any) -> dict[str, list[float]]:
    x, y = data(batches)
    return made.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0, **more).history


def by_hand(start: list[Any], batches: int, accumulation: int = 1) -> tuple[list[Any], list[dict[str, float]]]:
    """The parameters after one pass over the data in PyTorch, and the value of each term in each batch."""
    parameters = [torch.tensor(array, requires_grad=True) for array in start]
    first, first_bias, second, second_bias, third, third_bias = parameters
    optimizer = torch.optim.SGD(parameters, LEARNING_RATE, momentum=0.9)
    x, y = map(torch.tensor, data(batches))
    logs = []
    for batch in range(batches):
        step = batch // accumulation
        rows = slice(batch * ROWS, (batch + 1) * ROWS)
        hidden = torch.tanh(x[rows] @ first + first_bias)
        deeper = torch.tanh(hidden @ second + second_bias)
        base = (deeper @ third + third_bias - y[rows]).square().mean()
        terms = {
            "decay": first.square().sum() + second.square().sum(),
            "level": hidden.square().mean(),
            "l1": deeper.abs().sum() / ROWS,
            "smooth_l1": torch.nn.functional.smooth_l1_loss(third_bias, torch.zeros(1), reduction="sum", beta=0.5),
        }
        weights = {"decay": RISE(step), "level": FALL(step), "l1": 0.1, "smooth_l1": 0.2}
        loss = base + sum(weights[name] * value for name, value in terms.items())
        (loss / accumulation).backward()
        if batch % accumulation == accumulation - 1:
            optimizer.step()
            optimizer.zero_grad()
        logs.append({name: value.item() for name, value in terms.items()} | {"total": loss.item()})
    return [parameter.detach().numpy() for parameter in parameters], logs
