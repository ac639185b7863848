"""Orthogonality of 8192 × 256 against the plain 8192 × 8192 Gram matrix, forward and backward."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

import penalties

from .harness import Row, compare, gradient, keep_memory, peak


def gram(x: Tensor) -> Tensor:
    rows = normalize(x, dim=-1)
    products = rows @ rows.T
    return products.pow(2).sum() - products.diagonal().pow(2).sum()


def run(scale: float) -> list[Row]:
    keep_memory()
    x = torch.randn(8192, 256, generator=torch.Generator().manual_seed(0), requires_grad=True)
    plain, ours = gradient(gram, x), gradient(penalties.orthogonality, x)
    torch.testing.assert_close(ours(), plain())
    return [
        compare("time", plain, ours, seconds=15.0 * scale, unit="ms", most_ratio=0.25),
        Row("peak memory", "MB", [peak(plain)], [peak(ours)], [peak(plain)], most_ratio=0.1),
    ]
