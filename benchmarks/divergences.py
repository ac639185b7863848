"""Divergences of 1000 × 1000 log-probabilities against the formula that is wrong at zeros, forward and backward."""

from collections.abc import Callable

import torch
from torch import Tensor

import penalties

from .harness import Row, compare, gradient, keep_memory


def naive_kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(-1).mean()


def naive_js(p: Tensor, q: Tensor) -> Tensor:
    a, b = p.exp(), q.exp()
    middle = (0.5 * (a + b)).log()
    return (0.5 * (a * (p - middle)).sum(-1) + 0.5 * (b * (q - middle)).sum(-1)).mean()


def naive_entropy(p: Tensor) -> Tensor:
    return -(p.exp() * p).sum(-1).mean()


CASES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], int]] = {
    "kl_divergence": (naive_kl, penalties.kl_divergence, 2),
    "js_divergence": (naive_js, penalties.js_divergence, 2),
    "entropy": (naive_entropy, penalties.entropy, 1),
}


def run(scale: float) -> list[Row]:
    keep_memory()
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1000, 1000, generator=generator).log_softmax(-1).requires_grad_() for _ in range(2)]
    rows: list[Row] = []
    for how, most in (("eager", 2.1), ("compiled", 1.15)):
        for name, (naive, function, count) in CASES.items():
            sides: tuple[Callable[..., Tensor], ...] = (naive, function)
            if how == "compiled":
                sides = tuple(torch.compile(side, fullgraph=True) for side in sides)
            plain, ours = (gradient(side, *inputs[:count]) for side in sides)
            torch.testing.assert_close(ours(), plain())
            rows.append(compare(f"{name}, {how}", plain, ours, seconds=4.0 * scale, most_ratio=most))
    return rows
