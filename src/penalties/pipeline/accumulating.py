"""Adding the gradient of a call to the `.grad` of its leaves, as a backward would."""

from collections.abc import Sequence
from typing import Any

from ..errors import GradientError, OptionError
from .targets import Targets

__all__ = ["accumulate", "check_leaves", "prepare"]


def check_leaves(targets: Targets) -> None:
    """Raise unless every target has its own `.grad` to add to."""
    if targets.ops.LIBRARY != "PyTorch":
        expected = f"False: {targets.ops.LIBRARY} arrays have no .grad; use out.gradient"
        raise OptionError("value_and_grad", "accumulate", True, expected)
    if targets.inputs.traced:
        raise OptionError("value_and_grad", "accumulate", True, "False inside torch.compile; use out.gradient")
    for name, leaf in zip(targets.names, targets.leaves, strict=True):
        if not (leaf.is_leaf and leaf.requires_grad):
            raise GradientError(
                f"value_and_grad: accumulate=True adds to .grad, and {name} holds a tensor that does not require a "
                "gradient, or is computed from others; expected parameters, or call requires_grad_() on it"
            )


def prepare(leaves: Sequence[Any]) -> bool:
    """Whether a kernel can add to every `.grad` in place; one that is missing is made, unless all are."""
    grads = [leaf.grad for leaf in leaves]
    present = [grad for grad in grads if grad is not None]
    usable = all(
        grad.layout == leaf.layout and grad.is_contiguous() and grad.dtype == leaf.dtype and not grad.requires_grad
        for leaf, grad in zip(leaves, grads, strict=True)
        if grad is not None
    )
    # A tensor that is there twice would be added to by two blocks at once.
    if not present or not usable or len({id(leaf) for leaf in leaves}) != len(leaves):
        return False
    for leaf in leaves:
        if leaf.grad is None:
            leaf.grad = leaf.detach().new_zeros(leaf.shape)
    return True


def accumulate(leaves: Sequence[Any], gradients: Sequence[Any]) -> None:
    """Add each gradient to the `.grad` of its leaf."""
    for leaf, gradient in zip(leaves, gradients, strict=True):
        before = leaf.grad
        if before is None or before.is_sparse or before.requires_grad:
            leaf.grad = gradient if before is None else gradient + before
        else:
            before.add_(gradient)
