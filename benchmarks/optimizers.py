"""L1 and L2 on all weights of a model by hooks of the optimizer, against its step alone and terms of the loss."""

from collections.abc import Sequence

import torch

from penalties.integrations.torch import decay, proximal

from .harness import Row, compare

MATRICES = 95
WIDTH = 512
L1, L2 = 1e-5, 1e-4

# A pass of its own over the weights cannot keep it where memory binds: decision 38 says why, and what was tried.
MOST = 1.1


def model(scale: float) -> list[torch.nn.Parameter]:
    """The parameters of a model of 25 million, or of a tiny one, with gradients."""
    torch.manual_seed(0)
    shapes = [(WIDTH, WIDTH), (WIDTH,)] * (MATRICES if scale else 2)
    parameters = [torch.nn.Parameter(0.02 * torch.randn(shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = 1e-3 * torch.randn_like(parameter)
    return parameters


def adamw(parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-6, weight_decay=0.0)


def run(scale: float) -> list[Row]:
    parameters = model(scale)
    seconds = 12 * scale
    plain, coupled, decoupled, shrunk = (adamw(parameters) for _ in range(4))
    decay(coupled, l1=L1, l2=L2, decoupled=False)
    decay(decoupled, l1=L1, l2=L2)
    proximal(shrunk, l1=L1, l2=L2)

    def through_the_loss() -> None:
        # The slope of Σw² is 2w. The backward adds to the gradients that are there.
        l1, l2 = sum(one.abs().sum() for one in parameters), sum((one**2).sum() for one in parameters)
        (L1 * l1 + 0.5 * L2 * l2).backward()
        plain.step()

    rows = [
        compare(f"{name}, against the step alone", plain.step, hooked.step, seconds=seconds, unit="ms", most_ratio=MOST)
        for name, hooked in (("decoupled decay", decoupled), ("coupled decay", coupled), ("proximal", shrunk))
    ]
    rows += [
        compare(f"{name}, against the loss", through_the_loss, hooked.step, seconds=seconds, unit="ms", most_ratio=0.5)
        for name, hooked in (("decoupled decay", decoupled), ("coupled decay", coupled))
    ]
    return rows
