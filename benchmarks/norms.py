"""Norms of one tensor against the expression in PyTorch, forward and backward."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

import penalties

from .harness import Row, compare, gradient, keep_memory

CLIP = 1.0


def centered(x: Tensor) -> Tensor:
    return (x - x.mean()).pow(2)


def clipped(x: Tensor) -> Tensor:
    return x.clamp(-CLIP, CLIP).pow(2)


CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "l1": (lambda x: x.abs().sum(), lambda x: penalties.l1(x)),
    "l1, mean": (lambda x: x.abs().mean(), lambda x: penalties.l1(x, reduction="mean")),
    "l2": (lambda x: x.pow(2).sum(), lambda x: penalties.l2(x)),
    "l2, mean": (lambda x: x.pow(2).mean(), lambda x: penalties.l2(x, reduction="mean")),
    "l2 centered": (lambda x: centered(x).sum(), lambda x: penalties.l2(x, center="mean")),
    "l2 centered, mean": (
        lambda x: centered(x).mean(),
        lambda x: penalties.l2(x, center="mean", reduction="mean"),
    ),
    "l2 clipped": (lambda x: clipped(x).sum(), lambda x: penalties.l2(x, clip=CLIP)),
    "l2 clipped, mean": (lambda x: clipped(x).mean(), lambda x: penalties.l2(x, clip=CLIP, reduction="mean")),
    "elastic_net": (
        lambda x: 0.5 * x.abs().sum() + 0.5 * x.pow(2).sum(),
        lambda x: penalties.elastic_net(x),
    ),
    "elastic_net, mean": (
        lambda x: 0.5 * x.abs().mean() + 0.5 * x.pow(2).mean(),
        lambda x: penalties.elastic_net(x, reduction="mean"),
    ),
    "smooth_l1": (
        lambda x: smooth_l1_loss(x, torch.zeros_like(x), reduction="sum"),
        lambda x: penalties.smooth_l1(x),
    ),
    "smooth_l1, mean": (
        lambda x: smooth_l1_loss(x, torch.zeros_like(x)),
        lambda x: penalties.smooth_l1(x, reduction="mean"),
    ),
}


def run(scale: float) -> list[Row]:
    rows: list[Row] = []
    for size, most_ratio, most_more in ((10**4, math.inf, 3.0), (10**6, 1.10, math.inf)):
        if size == 10**6:
            # Not before: the small ones agree with themselves with the allocator as users have it.
            keep_memory()
        x = torch.randn(size, generator=torch.Generator().manual_seed(0), requires_grad=True)
        for name, sides in CASES.items():
            plain, ours = (gradient(side, x) for side in sides)
            torch.testing.assert_close(ours(), plain())
            case = f"{name}, {size:.0e}"
            rows.append(compare(case, plain, ours, seconds=2 * scale, most_ratio=most_ratio, most_more=most_more))
    return rows
