"""The optimizer of a local client: AdamW with the service's options, with its state keyed by parameter name."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...errors import GradientError, NonFiniteError, OptionError
from ...functional.options import check_number

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GRADIENT", "NORM", "STATE", "Adam", "check_adam"]

NORM: Final = "unclipped_grad_l2:mean"
"""The service's name for the norm of the gradient before clipping."""

STATE: Final = ("step", "exp_avg", "exp_avg_sq")
GRADIENT: Final = "gradient"
"""What is saved of each parameter: PyTorch's names of its moments, and what has been accumulated."""
# The smallest value of each option, the range in words, and the upper bound.
_OPTIONS: Final = {
    "learning_rate": (0.0, "a finite number of at least 0", math.inf),
    "beta1": (0.0, "a number from 0 to below 1", 1.0),
    "beta2": (0.0, "a number from 0 to below 1", 1.0),
    "eps": (0.0, "a finite number of at least 0", math.inf),
    "weight_decay": (0.0, "a finite number of at least 0", math.inf),
    "grad_clip_norm": (0.0, "a finite number of at least 0; 0 is no clipping", math.inf),
}


def check_adam(params: Any) -> dict[str, float]:
    """The options of a step, from any client's `AdamParams`."""
    missing = [name for name in _OPTIONS if not hasattr(params, name)]
    if missing:
        raise OptionError("optim_step", "adam_params", params, f"AdamParams; it has no {missing[0]}")
    return {
        name: check_number("optim_step", name, getattr(params, name), expected, low, math.nextafter(below, 0.0))
        for name, (low, expected, below) in _OPTIONS.items()
    }


class Adam:
    """AdamW over named parameters."""

    def __init__(self, parameters: "Mapping[str, Tensor]") -> None:
        """Start with no steps taken."""
        self._parameters = dict(parameters)
        self._optimizer = self._made()

    def _made(self) -> Any:
        import torch

        # Fused: one pass over all parameters, also on a CPU.
        return torch.optim.AdamW(list(self._parameters.values()), fused=True)

    def step(self, options: Mapping[str, float]) -> float:
        """Update the parameters, clear their gradients, and return the norm of the gradient before clipping."""
        import torch

        gradients = [one.grad for one in self._parameters.values() if one.grad is not None]
        if not gradients:
            raise GradientError("optim_step: there are no gradients; call forward_backward first")
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not math.isfinite(norm):
            self.clear()
            kind = "nan" if math.isnan(norm) else "inf"
            raise NonFiniteError(
                kind,
                f"optim_step: the norm of the gradient is {kind}; the gradient was discarded and no step was taken",
            )
        most = options["grad_clip_norm"]
        if 0.0 < most < norm:
            for gradient in gradients:
                gradient.mul_(most / norm)
        (group,) = self._optimizer.param_groups
        group["lr"] = options["learning_rate"]
        group["betas"] = (options["beta1"], options["beta2"])
        group["eps"] = options["eps"]
        group["weight_decay"] = options["weight_decay"]
        self._optimizer.step()
        self.clear()
        return norm

    def clear(self) -> None:
        """Clear the gradients."""
        for one in self._parameters.values():
            one.grad = None

    def state(self) -> "dict[str, Tensor]":
        """Everything that later steps depend on, besides the parameters: moments, and accumulated gradients."""
        found = {
            f"{kind}/{name}": state[kind]
            for name, one in self._parameters.items()
            if (state := self._optimizer.state.get(one))
            for kind in STATE
        }
        gradients = {f"{GRADIENT}/{name}": one.grad for name, one in self._parameters.items() if one.grad is not None}
        return found | gradients

    def restore(self, state: "Mapping[str, Tensor]") -> None:
        """Continue from a state; an empty one is the initial state."""
        self._optimizer = self._made()
        for name, one in self._parameters.items():
            if f"step/{name}" in state:
                self._optimizer.state[one] = {kind: state[f"{kind}/{name}"].to(one.device) for kind in STATE}
            gradient = state.get(f"{GRADIENT}/{name}")
            one.grad = None if gradient is None else gradient.to(one.device)
