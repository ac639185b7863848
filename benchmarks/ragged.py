"""Five norms of 64 ragged tensors, 1e4 elements in all, against a loop over the tensors, forward and backward."""

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

import penalties

from .harness import Row, compare, gradient, keep_memory


def looped(*leaves: Tensor) -> Tensor:
    l1 = sum(x.abs().sum() for x in leaves)
    l2 = sum(x.pow(2).sum() for x in leaves)
    elastic_net = sum(0.5 * x.abs().sum() + 0.5 * x.pow(2).sum() for x in leaves)
    smooth_l1 = sum(smooth_l1_loss(x, torch.zeros_like(x), reduction="sum") for x in leaves)
    clipped = sum(x.clamp(-1.0, 1.0).pow(2).sum() for x in leaves)
    return l1 + l2 + elastic_net + smooth_l1 + clipped


def together(*leaves: Tensor) -> Tensor:
    return (
        penalties.l1(leaves)
        + penalties.l2(leaves)
        + penalties.elastic_net(leaves)
        + penalties.smooth_l1(leaves)
        + penalties.l2(leaves, clip=1.0)
    )


def run(scale: float) -> list[Row]:
    keep_memory()
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(50, 263, (64,), generator=generator).tolist()
    leaves = [torch.randn(length, generator=generator, requires_grad=True) for length in lengths]
    plain, ours = gradient(looped, *leaves), gradient(together, *leaves)
    torch.testing.assert_close(ours(), plain())
    return [compare(f"{sum(lengths)} elements", plain, ours, seconds=5.0 * scale, most_ratio=0.15)]
