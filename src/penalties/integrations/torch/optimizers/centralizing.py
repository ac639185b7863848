"""Centralized gradients: those of each unit have the mean 0."""

from typing import TYPE_CHECKING

from ....backends.torch.sharded import placed
from ...units import check_axis, within
from .attached import Attached, Parameters, Step, attach

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["centralize"]


def centralize(
    optimizer: "Optimizer", *, axis: int = 0, parameters: Parameters | None = None, name: str = "centralize"
) -> Attached:
    """Subtract from the gradient of each unit its mean, in tensors of two axes or more.

    A unit is a slice along `axis`: a row of a linear layer's weight, a filter of a convolution. Yong et al.,
    "Gradient centralization" (2020).

    >>> import torch
    >>> from penalties.integrations.torch import centralize
    >>> weight = torch.nn.Parameter(torch.zeros(2, 3))
    >>> weight.grad = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 9.0]])
    >>> optimizer = torch.optim.SGD([weight], lr=1.0)
    >>> attached = centralize(optimizer)
    >>> optimizer.step()
    >>> weight.grad.tolist()
    [[-1.0, 0.0, 1.0], [-2.0, -1.0, 3.0]]
    """
    check_axis("centralize", axis)

    def apply(step: Step) -> None:
        for _, _, gradient in step.gradients:
            if gradient.dim() > 1:
                axes = within("centralize", gradient.shape, axis)
                gradient.sub_(placed(gradient.mean(dim=axes, keepdim=True), gradient))

    return attach(name, optimizer, parameters, apply)
