"""A training step that captures the outputs of twelve layers, against the same step without.

Both train one transformer on one batch. The captured outputs are read, as a term would, and add nothing to the loss.
"""

from collections.abc import Callable

import torch
from torch import nn

import penalties as pn

from .harness import FIXED_ALLOCATOR, Row, compare, in_process

LAYERS = 12


def run(scale: float) -> list[Row]:
    return in_process("benchmarks.capture:rows", scale, FIXED_ALLOCATOR)


def rows(scale: float) -> list[Row]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    # Without the fast path for inference, which calls no layers.
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(4, 64, 128)

    def step(forward: Callable[[], torch.Tensor]) -> None:
        optimizer.zero_grad()
        forward().square().mean().backward()
        optimizer.step()

    def captured() -> torch.Tensor:
        with pn.capture(model, [f"layers.{index}" for index in range(LAYERS)]) as activations:
            prediction = model(x)
            assert len([activations[name] for name in activations]) == LAYERS
        return prediction

    return [
        compare(
            "a step that captures twelve layers",
            lambda: step(lambda: model(x)),
            lambda: step(captured),
            seconds=15.0 * scale,
            unit="ms",
            most_ratio=1.03,
        )
    ]
