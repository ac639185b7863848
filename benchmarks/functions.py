"""Penalties against the expressions that they replace, forward and backward, on PyTorch.

Divergences are compared with the formulas that are wrong at zeros, orthogonality with the Gram matrix of all rows, and
norms of a list of short tensors with a loop over them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, smooth_l1_loss

import penalties as pn

from .harness import FIXED_ALLOCATOR, Row, compare, in_process, peak_memory

Pair = tuple[Callable[..., Tensor], Callable[..., Tensor]]

NORMS: dict[str, Pair] = {
    "l1": (lambda x: x.abs().sum(), lambda x: pn.l1(x)),
    "l1, mean": (lambda x: x.abs().mean(), lambda x: pn.l1(x, reduction="mean")),
    "l2": (lambda x: x.pow(2).sum(), lambda x: pn.l2(x)),
    "l2, centered": (lambda x: (x - x.mean()).pow(2).sum(), lambda x: pn.l2(x, center="mean")),
    "l2, clipped": (lambda x: x.clamp(-1.0, 1.0).pow(2).sum(), lambda x: pn.l2(x, clip=1.0)),
    "elastic_net": (lambda x: 0.5 * x.abs().sum() + 0.5 * x.pow(2).sum(), lambda x: pn.elastic_net(x)),
    "smooth_l1": (lambda x: smooth_l1_loss(x, torch.zeros_like(x), reduction="sum"), lambda x: pn.smooth_l1(x)),
}


def naive_kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(-1).mean()


def naive_js(p: Tensor, q: Tensor) -> Tensor:
    a, b = p.exp(), q.exp()
    middle = (0.5 * (a + b)).log()
    return (0.5 * (a * (p - middle)).sum(-1) + 0.5 * (b * (q - middle)).sum(-1)).mean()


def naive_entropy(p: Tensor) -> Tensor:
    return -(p.exp() * p).sum(-1).mean()


DIVERGENCES: dict[str, tuple[Pair, int]] = {
    "kl_divergence": ((naive_kl, pn.kl_divergence), 2),
    "js_divergence": ((naive_js, pn.js_divergence), 2),
    "entropy": ((naive_entropy, pn.entropy), 1),
}


def run(scale: float) -> list[Row]:
    return [
        *_norms(10**4, scale, most_more=3.0),
        _ragged(scale),
        *in_process("benchmarks.functions:large", scale, FIXED_ALLOCATOR),
    ]


def large(scale: float) -> list[Row]:
    """The rows whose results are megabytes."""
    return [*_norms(10**6, scale, most_ratio=1.10), *_divergences(scale), *_orthogonality(scale)]


def _norms(size: int, scale: float, **limit: float) -> list[Row]:
    x = torch.randn(size, generator=torch.Generator().manual_seed(0), requires_grad=True)
    return [_compared(f"{name}, {size:.0e}", pair, [x], seconds=2.0 * scale, **limit) for name, pair in NORMS.items()]


def _divergences(scale: float) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1000, 1000, generator=generator).log_softmax(-1).requires_grad_() for _ in range(2)]
    rows: list[Row] = []
    for name, ((naive, ours), count) in DIVERGENCES.items():
        rows.append(_compared(f"{name}, 1e6", (naive, ours), inputs[:count], seconds=4.0 * scale, most_ratio=2.1))
        compiled = (torch.compile(naive, fullgraph=True), torch.compile(ours, fullgraph=True))
        case = f"{name}, 1e6, compiled"
        rows.append(_compared(case, compiled, inputs[:count], seconds=4.0 * scale, most_ratio=1.15))
    return rows


def _orthogonality(scale: float) -> list[Row]:
    def gram(x: Tensor) -> Tensor:
        rows = normalize(x, dim=-1)
        products = rows @ rows.T
        return products.pow(2).sum() - products.diagonal().pow(2).sum()

    x = torch.randn(8192, 256, generator=torch.Generator().manual_seed(0), requires_grad=True)
    case = "orthogonality, 8192 × 256"
    time = _compared(case, (gram, pn.orthogonality), [x], seconds=10.0 * scale, unit="ms", most_ratio=0.25)
    plain, ours = ([peak_memory(_gradient(side, [x]))] for side in (gram, pn.orthogonality))
    return [time, Row(f"{case}, peak memory", "MB", plain, ours, plain, most_ratio=0.1)]


def _ragged(scale: float) -> Row:
    def looped(*leaves: Tensor) -> Tensor:
        total = torch.zeros(())
        for x in leaves:
            total = total + x.abs().sum() + x.pow(2).sum() + smooth_l1_loss(x, torch.zeros_like(x), reduction="sum")
            total = total + 0.5 * x.abs().sum() + 0.5 * x.pow(2).sum() + x.clamp(-1.0, 1.0).pow(2).sum()
        return total

    def together(*leaves: Tensor) -> Tensor:
        norms = pn.l1(leaves) + pn.l2(leaves) + pn.smooth_l1(leaves)
        return norms + pn.elastic_net(leaves) + pn.l2(leaves, clip=1.0)

    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(50, 263, (64,), generator=generator).tolist()
    leaves = [torch.randn(length, generator=generator, requires_grad=True) for length in lengths]
    return _compared("5 norms of 64 short tensors", (looped, together), leaves, seconds=5.0 * scale, most_ratio=0.15)


def _compared(case: str, pair: Pair, leaves: list[Tensor], **options: Any) -> Row:
    plain, ours = (_gradient(side, leaves) for side in pair)
    torch.testing.assert_close(ours(), plain())
    return compare(case, plain, ours, **options)


def _gradient(fn: Callable[..., Tensor], leaves: list[Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    """One forward and backward pass of a function of these tensors."""
    return lambda: torch.autograd.grad(fn(*leaves), leaves)
