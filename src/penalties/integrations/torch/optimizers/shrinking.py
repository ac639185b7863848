"""Proximal steps: weights that reach 0 exactly, one at a time or in groups."""

from typing import TYPE_CHECKING, Any

from ...strengths import Strength, strengths
from ...units import check_axis, remaining, within
from .attached import Attached, Parameters, Step, attach
from .norms import norms

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

__all__ = ["proximal"]


def proximal(
    optimizer: "Optimizer",
    *,
    l1: Strength | None = None,
    l2: Strength | None = None,
    group: Strength | None = None,
    axis: int = 0,
    parameters: Parameters | None = None,
    name: str = "proximal",
) -> Attached:
    """After each step, the proximal operator of `lr·(l1·Σ|w| + group·Σ‖unit‖ + ½·l2·Σw²)`, which makes exact zeros.

    `l1` moves each weight towards 0 by `lr·l1`, and one that is nearer than that becomes 0. `group` does the same with
    the norm of each unit, a slice along `axis`: a row of a linear layer's weight for 0, a column, which belongs to one
    input, for 1. `l2` then divides by `1 + lr·l2`. `l1` and `l2` are an elastic net, `group` is a group lasso, `l1` and
    `group` a sparse group lasso. A tensor of one axis has no units, and
    `group` leaves it alone.

    The learning rate is that of the weight's group. With SGD this is proximal gradient descent, which minimizes the
    loss plus the penalty. An adaptive optimizer has its own step size for each weight; the threshold here is
    `lr·l1` for all of them, so zeros are exact, but how strong a penalty is depends on the optimizer. Strengths are
    numbers or functions of the step. Parikh and Boyd, "Proximal algorithms" (2014).

    >>> import torch
    >>> from penalties.integrations.torch import proximal
    >>> weight = torch.nn.Parameter(torch.tensor([2.0, -0.25, -1.0]))
    >>> weight.grad = torch.zeros(3)
    >>> optimizer = torch.optim.SGD([weight], lr=0.5)
    >>> attached = proximal(optimizer, l1=1.0)
    >>> optimizer.step()
    >>> weight.tolist()
    [1.5, 0.0, -0.5]
    """
    check_axis("proximal", axis)
    given = strengths("proximal", l1=l1, l2=l2, group=group)

    def apply(step: Step) -> None:
        now = {option: at(step.number) for option, at in given.items()}
        for options, weights in step.groups:
            rate: Any = step.rate(options) if weights else None
            for weight in weights:
                for option, shrink in _SHRINK.items():
                    if option in now:
                        shrink(weight, rate * now[option], axis)

    return attach(name, optimizer, parameters, apply, after=True)


def _shrink_each(weight: "Tensor", threshold: Any, axis: int) -> None:
    if weight.is_complex():
        weight.mul_(remaining(weight.abs(), threshold))
    else:
        weight.sub_(weight.clamp(-threshold, threshold))


def _shrink_units(weight: "Tensor", threshold: Any, axis: int) -> None:
    if weight.dim() > 1:
        weight.mul_(remaining(norms(weight, within("proximal", weight.shape, axis)), threshold))


def _scale(weight: "Tensor", rate: Any, axis: int) -> None:
    weight.div_(1 + rate)


# In this order the composition is the operator of the sum.
_SHRINK = {"l1": _shrink_each, "group": _shrink_units, "l2": _scale}
