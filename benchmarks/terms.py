"""The five terms that the benchmarks of pipelines share, and what a user would write without one."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

import penalties as pn

WEIGHTS = {"l1": 1e-3, "l2": 1e-3, "elastic_net": 1e-3, "smooth_l1": 1e-3, "entropy": 0.1}

# The same mathematics as ours, so that the sides differ by nothing else.
EXPRESSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": lambda x: x.abs().sum(),
    "l2": lambda x: (x * x).sum(),
    "elastic_net": lambda x: 0.5 * x.abs().sum() + 0.5 * (x * x).sum(),
    "smooth_l1": lambda x: smooth_l1_loss(x, torch.zeros_like(x), reduction="sum"),
    "entropy": lambda x: -(x.exp() * x.clamp(min=-1e30)).sum(-1).mean(),
}


def inline(x: Tensor) -> Tensor:
    """The weighted sum of the five, written out."""
    return (
        1e-3 * x.abs().sum()
        + 1e-3 * (x * x).sum()
        + 1e-3 * (0.5 * x.abs().sum() + 0.5 * (x * x).sum())
        + 1e-3 * smooth_l1_loss(x, torch.zeros_like(x), reduction="sum")
        + 0.1 * -(x.exp() * x.clamp(min=-1e30)).sum(-1).mean()
    )


def logprobs(rows: int, classes: int) -> Tensor:
    """Log-probabilities that require a gradient."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, classes, generator=generator).log_softmax(-1).requires_grad_()


def pipeline(count: int = 5) -> pn.Pipeline:
    """So many terms: the five in turns."""
    turns = itertools.islice(itertools.cycle(WEIGHTS.items()), count)
    return pn.Pipeline([pn.Term(name, weight, name=f"{name}_{i}") for i, (name, weight) in enumerate(turns)])


def looped(count: int) -> Callable[[Tensor], Tensor]:
    """The same as so many terms, in a loop over expressions."""
    turns = [(WEIGHTS[name], EXPRESSIONS[name]) for name in itertools.islice(itertools.cycle(WEIGHTS), count)]

    def total(x: Tensor) -> Tensor:
        weight, expression = turns[0]
        sum_ = weight * expression(x)
        for weight, expression in turns[1:]:
            sum_ = sum_ + weight * expression(x)
        return sum_

    return total


def backward(total: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    """One step: the total, and its gradient in `x.grad`."""

    def step() -> None:
        x.grad = None
        total(x).backward()

    return step


def agree(x: Tensor, *totals: Callable[[Tensor], Tensor]) -> None:
    """Check that all have the same gradient."""
    gradients: list[Tensor] = []
    for total in totals:
        backward(total, x)()
        assert x.grad is not None
        gradients.append(x.grad)
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])
