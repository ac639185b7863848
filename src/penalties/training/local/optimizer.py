"""The optimizer of a local client: AdamW with the service's options, with its state keyed by parameter name."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...errors import GradientError, InputError, NonFiniteError, OptionError
from ...functional.options import check_choice, check_number
from ..libraries import library

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GRADIENT", "NORM", "STATE", "Adam", "check_adam", "check_optimizer"]

NORM: Final = "unclipped_grad_l2:mean"
"""The service's name for the norm of the gradient before clipping."""

_EIGHT_BITS: Final = "adamw8bit"
_SECOND: Final = {"adamw": "exp_avg_sq", _EIGHT_BITS: "state2"}
"""The second moment in the state of each optimizer, which tells them apart."""
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


def check_optimizer(name: Any) -> None:
    """Raise if there is no such optimizer, or not its library."""
    check_choice("LocalTrainingClient", "optimizer", name, tuple(_SECOND))
    if name == _EIGHT_BITS:
        library(f'optimizer="{name}"', "bitsandbytes", "quantize")


class Adam:
    """AdamW over named parameters; as `"adamw8bit"`, bitsandbytes keeps the moments of large ones in 8 bits."""

    def __init__(self, parameters: "Mapping[str, Tensor]", name: str = "adamw") -> None:
        """Start with no steps taken."""
        self._parameters = dict(parameters)
        self._name = name
        self._optimizer = self._made()

    def _made(self) -> Any:
        if self._name == _EIGHT_BITS:
            optim = library(self._name, "bitsandbytes", "quantize").optim
            return optim.AdamW8bit(list(self._parameters.values()))
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
        import torch

        found: dict[str, Tensor] = {}
        for name, one in self._parameters.items():
            for kind, value in self._optimizer.state.get(one, {}).items():
                tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
                # bitsandbytes shares tables between parameters, which a file cannot.
                found[f"{kind}/{name}"] = tensor.clone() if kind.startswith("qmap") else tensor
        gradients = {f"{GRADIENT}/{name}": one.grad for name, one in self._parameters.items() if one.grad is not None}
        return found | gradients

    def restore(self, state: "Mapping[str, Tensor]") -> None:
        """Continue from a state; an empty one is the initial state."""
        held: dict[str, dict[str, Tensor]] = {name: {} for name in self._parameters}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if kind != GRADIENT and name in held:
                held[name][kind] = value
        if any(held.values()) and not any(_SECOND[self._name] in one for one in held.values()):
            raise InputError(
                f'the checkpoint has the state of another optimizer, not of "{self._name}"; create the client as it '
                "was when it saved, or use load_state"
            )
        self._optimizer = self._made()
        for name, one in self._parameters.items():
            if held[name]:
                self._optimizer.state[one] = {
                    # A number for bitsandbytes, and a tensor for torch.
                    kind: int(value) if kind == "step" and self._name == _EIGHT_BITS else value.to(one.device)
                    for kind, value in held[name].items()
                }
            gradient = state.get(f"{GRADIENT}/{name}")
            one.grad = None if gradient is None else gradient.to(one.device)
