"""The terms that the benchmarks share, built-in ones and functions of a user's own, and the same mathematics inline."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import smooth_l1_loss

import penalties as pn

Function = Callable[..., Any]


def absolute(x: Any) -> Any:
    return abs(x).sum()


def squares(x: Any) -> Any:
    return (x * x).sum()


def spread(x: Any) -> Any:
    return ((x - x.mean()) ** 2).mean()


def tails(x: Any) -> Any:
    return ((x - x.clip(-1.0, 1.0)) ** 2).sum()


def roughness(x: Any) -> Any:
    return ((x[:, 1:] - x[:, :-1]) ** 2).mean()


def inline_built_in(x: Tensor) -> Tensor:
    return (
        1e-3 * x.abs().sum()
        + 1e-3 * (x * x).sum()
        + 1e-3 * (0.5 * x.abs().sum() + 0.5 * (x * x).sum())
        + 1e-3 * smooth_l1_loss(x, torch.zeros_like(x), reduction="sum")
        + 0.1 * -(x.exp() * x.clamp(min=-1e30)).sum(-1).mean()
    )


def inline_own(x: Tensor) -> Tensor:
    return (
        1e-3 * abs(x).sum()
        + 1e-3 * (x * x).sum()
        + 0.1 * ((x - x.mean()) ** 2).mean()
        + 1e-3 * ((x - x.clip(-1.0, 1.0)) ** 2).sum()
        + 0.1 * ((x[:, 1:] - x[:, :-1]) ** 2).mean()
    )


@dataclass(frozen=True)
class Five:
    """Five functions of one array with their weights, and their weighted sum as one expression of PyTorch."""

    name: str
    functions: Mapping[Function, float]
    inline: Callable[[Tensor], Tensor]

    def turns(self, count: int) -> list[tuple[Function, float]]:
        """So many of the functions with their weights, one after another and again."""
        return list(itertools.islice(itertools.cycle(self.functions.items()), count))

    def pipeline(self, count: int = 5) -> pn.Pipeline:
        turns = self.turns(count)
        return pn.Pipeline([pn.Term(fn, weight, name=f"{fn.__name__}_{i}") for i, (fn, weight) in enumerate(turns)])


BUILT_IN = Five(
    "built-in",
    {pn.l1: 1e-3, pn.l2: 1e-3, pn.elastic_net: 1e-3, pn.smooth_l1: 1e-3, pn.entropy: 0.1},
    inline_built_in,
)
OWN = Five("own", {absolute: 1e-3, squares: 1e-3, spread: 0.1, tails: 1e-3, roughness: 0.1}, inline_own)
FIVES = (BUILT_IN, OWN)


def logprobs(rows: int, classes: int) -> Tensor:
    """Log-probabilities that require a gradient."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, classes, generator=generator).log_softmax(-1).requires_grad_()


def summed(turns: Sequence[tuple[Function, float]]) -> Callable[[Any], Any]:
    """The weighted sum of functions, by a loop that calls them."""

    def total(x: Any) -> Any:
        (first, weight), *rest = turns
        result = weight * first(x)
        for fn, weight in rest:
            result = result + weight * fn(x)
        return result

    return total


def gradients_by_hand(turns: Sequence[tuple[Function, float]], x: Tensor) -> Callable[[], tuple[Tensor, list[Tensor]]]:
    """One gradient a function, its norm, and the weighted sum of them all: the loop that a user would write."""

    def step() -> tuple[Tensor, list[Tensor]]:
        combined = torch.zeros_like(x)
        norms: list[Tensor] = []
        for fn, weight in turns:
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(fn(leaf), leaf)
            norms.append(vector_norm(gradient))
            combined.add_(gradient, alpha=weight)
        norms.append(vector_norm(combined))
        return combined, norms

    return step


def backward(total: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
    """One step: the total, and its gradient in `x.grad`."""

    def step() -> None:
        x.grad = None
        total(x).backward()

    return step


def check_gradients(x: Tensor, *totals: Callable[[Tensor], Tensor]) -> None:
    """Raise unless all have the same gradient: sides that compute different things cannot be compared."""
    gradients: list[Tensor] = []
    for total in totals:
        backward(total, x)()
        assert x.grad is not None
        gradients.append(x.grad)
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])
