"""Clipped gradients: by their norm, and by the size of the weights that they change."""

from typing import TYPE_CHECKING

from ....functional.options import POSITIVE, check_number
from ...units import check_axis, within
from .attached import Attached, Parameters, Step, attach
from .norms import norms

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["clip_norm", "clip_units"]


def clip_norm(
    optimizer: "Optimizer", *, max_norm: float = 1.0, parameters: Parameters | None = None, name: str = "clip_norm"
) -> Attached:
    """Scale the gradients of all parameters together down to a norm of at most `max_norm`.

    This is `torch.nn.utils.clip_grad_norm_` at each step, which leaves sparse gradients to you.

    >>> import torch
    >>> from penalties.integrations.torch import clip_norm
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> optimizer = torch.optim.SGD([weight], lr=1.0)
    >>> attached = clip_norm(optimizer, max_norm=1.0)
    >>> optimizer.step()
    >>> [round(one, 4) for one in weight.tolist()]
    [-0.6, -0.8]
    """
    max_norm = check_number("clip_norm", "max_norm", max_norm, "a finite number above 0", low=POSITIVE)

    def apply(step: Step) -> None:
        from torch.nn.utils import clip_grad_norm_

        clip_grad_norm_([parameter for _, parameter, _ in step.gradients], max_norm * step.scale)

    return attach(name, optimizer, parameters, apply)


def clip_units(
    optimizer: "Optimizer",
    *,
    ratio: float = 0.01,
    eps: float = 1e-3,
    axis: int = 0,
    parameters: Parameters | None = None,
    name: str = "clip_units",
) -> Attached:
    """Adaptive gradient clipping: a unit's gradient has at most `ratio` times the norm of the unit's weights.

    A unit is a slice along `axis`: a row of a linear layer's weight, a filter of a convolution. A tensor of one axis is
    one unit. Weights whose norm is less than `eps` count as that, so that those that start at 0 can move. Brock et al.,
    "High-performance large-scale image recognition without normalization" (2021).

    >>> import torch
    >>> from penalties.integrations.torch import clip_units
    >>> weight = torch.nn.Parameter(torch.tensor([[3.0, 4.0], [30.0, 40.0]]))
    >>> weight.grad = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    >>> optimizer = torch.optim.SGD([weight], lr=1.0)
    >>> attached = clip_units(optimizer, ratio=0.1)
    >>> optimizer.step()
    >>> weight.grad.tolist()
    [[0.0, 0.5], [0.0, 2.0]]
    """
    ratio = check_number("clip_units", "ratio", ratio, "a finite number above 0", low=POSITIVE)
    eps = check_number("clip_units", "eps", eps, "a finite number above 0", low=POSITIVE)
    check_axis("clip_units", axis)

    def apply(step: Step) -> None:
        for _, weight, gradient in step.gradients:
            axes = within("clip_units", weight.shape, axis) if weight.dim() > 1 else None
            most = norms(weight, axes).clamp(min=eps) * (ratio * step.scale)
            gradient.mul_((most / norms(gradient, axes)).clamp(max=1.0))

    return attach(name, optimizer, parameters, apply)
