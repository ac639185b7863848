"""Five norms of 64 ragged tensors, 1e4 elements in all, against a loop over the tensors, forward and backward."""

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

import penalties

from .harness import Row, compare, gradient


def looped(*leaves: Tensor) -> Tensor:
    total = torch.zeros(())
    for x in leaves:
        total = total + x.abs().sum()
        total = total + x.pow(2).sum()
        total = total + 0.5 * x.abs().sum() + 0.5 * x.pow(2).sum()
        total = total + smooth_l1_loss(x, torch.zeros_like(x), reduction="sum")
        total = total + x.clamp(-1.0, 1.0).pow(2).sum()
    return total


def together(*leaves: Tensor) -> Tensor:
    return (
        penalties.l1(leaves)
        + penalties.l2(leaves)
        + penalties.elastic_net(leaves)
        + penalties.smooth_l1(leaves)
        + penalties.l2(leaves, clip=1.0)
    )


def run(scale: float) -> list[Row]:
    # With the allocator as users have it: its arrays are small, and two equal sides agree without further care.
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(50, 263, (64,), generator=generator).tolist()
    leaves = [torch.randn(length, generator=generator, requires_grad=True) for length in lengths]
    plain, ours = gradient(looped, *leaves), gradient(together, *leaves)
    torch.testing.assert_close(ours(), plain())
    return [compare(f"{sum(lengths)} elements", plain, ours, seconds=5.0 * scale, most_ratio=0.15)]
