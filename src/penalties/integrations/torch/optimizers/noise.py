"""Noise in the gradients."""

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ....functional.options import check_count, check_number
from ...strengths import Strength, strength
from .attached import Attached, Parameters, Step, attach

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from torch.optim import Optimizer

__all__ = ["gradient_noise"]


def gradient_noise(
    optimizer: "Optimizer",
    *,
    variance: Strength = 0.01,
    decay: float = 0.55,
    seed: int = 0,
    parameters: Parameters | None = None,
    name: str = "gradient_noise",
) -> Attached:
    """Add Gaussian noise of variance `variance / (1 + step)^decay` to the gradients.

    `variance` is a number or a function of the step; `decay=0` leaves that function as it is. What is drawn depends on
    the seed, the transform's name, the number of the step and the index of the parameter in the optimizer. So a run
    that is resumed from the optimizer's checkpoint draws what it would have drawn, and equal processes stay equal,
    sharded ones too. Give each of several optimizers its own seed: with equal ones they draw the same noise.
    Neelakantan et al., "Adding gradient noise improves learning for very deep networks" (2015).

    >>> import torch
    >>> from penalties.integrations.torch import gradient_noise
    >>> weight = torch.nn.Parameter(torch.zeros(10_000))
    >>> weight.grad = torch.zeros(10_000)
    >>> optimizer = torch.optim.SGD([weight], lr=1.0)
    >>> attached = gradient_noise(optimizer, variance=0.25)
    >>> optimizer.step()
    >>> round(weight.std().item(), 1)
    0.5
    """
    at = strength("gradient_noise", "variance", variance)
    decay = check_number("gradient_noise", "decay", decay, "a finite number of at least 0", low=0.0)
    check_count("gradient_noise", "seed", seed, 0)

    def apply(step: Step) -> None:
        import torch

        deviation = (at(step.number) / (1 + step.number) ** decay) ** 0.5 * step.scale
        held = [id(one) for group in step.optimizer.param_groups for one in group["params"]]
        indices = {one: index for index, one in enumerate(held)}
        generators: dict[torch.device, Generator] = {}
        for _, parameter, gradient in step.gradients:
            if gradient.device not in generators:
                generators[gradient.device] = torch.Generator(gradient.device)
            entropy = [seed, step.number, indices[id(parameter)], *step.name.encode()]
            drawn = int(np.random.SeedSequence(entropy).generate_state(1)[0])
            gradient.add_(_noise(gradient, generators[gradient.device].manual_seed(drawn)), alpha=float(deviation))

    return attach(name, optimizer, parameters, apply)


def _noise(gradient: "Tensor", generator: "Generator") -> "Tensor":
    """Normal noise for a gradient; for one that is sharded, the part of this rank of the same noise on all."""
    import torch

    noise = torch.randn(gradient.shape, generator=generator, dtype=gradient.dtype, device=gradient.device)
    if not hasattr(gradient, "placements"):
        return noise
    from torch.distributed.tensor import distribute_tensor

    sharded = cast("Any", gradient)
    return distribute_tensor(noise, sharded.device_mesh, sharded.placements, src_data_rank=None)
