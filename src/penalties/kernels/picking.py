"""Log-probabilities of a target for each row of logits, and their gradient: one sweep each."""

from typing import TYPE_CHECKING, Any

from . import triton_unavailable, unavailable
from .distributions import unsupported

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Picked", "picked"]

_LABEL_ALONE = [False, False, False, False, True]
"""Of the sums of a row, the log-probability of its label."""


def picked(logits: "Tensor", targets: "Tensor") -> "Picked | None":
    """Those of targets, (T,), under logits, (T, V); None where there is no kernel."""
    if (unavailable(logits) or triton_unavailable(logits) or unsupported(logits, None, [], targets)) is not None:
        return None
    return Picked(logits, targets)


class Picked:
    """What a first sweep found; the logits must not change before the second."""

    def __init__(self, logits: "Tensor", targets: "Tensor") -> None:
        """Sweep once; a target that is not a class is NaN."""
        from .triton.statistics import statistics

        self._logits = logits
        self._targets: Any = targets.long()
        self._rows = statistics(logits, None, self._targets, None, _LABEL_ALONE, 1.0, True)
        self.logprobs: Any = self._rows.sums[-1]
        """(T,), in float32."""

    def gradient(self, slopes: "Tensor") -> "Tensor":
        """At the logits, from that at each log-probability."""
        import torch

        from .triton.gradients import gradient

        coefficients = torch.zeros_like(self._rows.sums)
        coefficients[-1] = slopes
        return gradient(
            self._logits, None, self._targets, None, self._rows, [0.0] * len(coefficients), coefficients,
            _LABEL_ALONE, 1.0, True, False,
        )  # fmt: skip
