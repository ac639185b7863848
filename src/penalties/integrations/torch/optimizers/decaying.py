"""Decay: weights that shrink at each step, by their size, by a constant, or by both."""

from typing import TYPE_CHECKING, Any

from ....functional.options import check_flag
from ...strengths import Strength, strengths
from .attached import Attached, Parameters, Step, attach

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

__all__ = ["decay"]


def decay(
    optimizer: "Optimizer",
    *,
    l1: Strength | None = None,
    l2: Strength | None = None,
    decoupled: bool = True,
    parameters: Parameters | None = None,
    name: str = "decay",
) -> Attached:
    """Shrink weights at each step by the slope of `l1·Σ|w| + ½·l2·Σw²`; both strengths together are an elastic net.

    Decoupled, weights move by `−lr·(l1·sign(w) + l2·w)` whatever the optimizer makes of the gradient, with the learning
    rate of their group; for `l2` alone this is AdamW's `weight_decay`. Coupled, `l1·sign(w) + l2·w` is added to the
    gradient, and goes through momentum and the scales of an adaptive optimizer. The sign of 0 is 0.

    `l1` and `l2` are numbers or functions of the step. `pn.l2` in the loss is `Σw²`, whose slope is `2w`, so a term of
    weight 0.01 there is `l2=0.02` here. Weights that come near 0 oscillate about it, by `lr·l1`; for exact zeros use
    `proximal`. Loshchilov and Hutter, "Decoupled weight decay regularization" (2019).

    >>> import torch
    >>> from penalties.integrations.torch import decay
    >>> weight = torch.nn.Parameter(torch.tensor([2.0, -1.0, 0.0]))
    >>> weight.grad = torch.zeros(3)
    >>> optimizer = torch.optim.SGD([weight], lr=0.5)
    >>> attached = decay(optimizer, l1=0.5, l2=0.25)
    >>> optimizer.step()
    >>> weight.tolist()
    [1.5, -0.625, 0.0]
    """
    check_flag("decay", "decoupled", decoupled)
    given = strengths("decay", l1=l1, l2=l2)
    decays = _decay_weights if decoupled else _decay_gradients

    def apply(step: Step) -> None:
        decays(step, **{option: at(step.number) for option, at in given.items()})

    return attach(name, optimizer, parameters, apply)


def _decay_weights(step: Step, l1: Any = None, l2: Any = None) -> None:
    for group, weights in step.groups:
        rate: Any = step.rate(group) if weights else None
        for weight in weights:
            sign = None if l1 is None else weight.sgn()
            if l2 is not None:
                weight.mul_(1 - rate * l2)
            if sign is not None:
                _add(weight, sign, -rate * l1)


def _decay_gradients(step: Step, l1: Any = None, l2: Any = None) -> None:
    for group, weight, gradient in step.gradients:
        # An optimizer that maximizes takes the negative of the gradient.
        factor = -step.scale if group.get("maximize") else step.scale
        if l2 is not None:
            _add(gradient, weight, factor * l2)
        if l1 is not None:
            _add(gradient, weight.sgn(), factor * l1)


def _add(target: "Tensor", source: "Tensor", factor: Any) -> None:
    """Add a multiple; a factor that is a tensor, such as a learning rate on a GPU, stays where it is."""
    import torch

    if isinstance(factor, torch.Tensor):
        target.addcmul_(source, factor)
    else:
        target.add_(source, alpha=factor)
